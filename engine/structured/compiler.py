"""Compiles grammars on threads of their own, once for some choices with the same source.

Copies of one compiled matcher share its lexer, behind a lock: their masks are filled one after
another, whatever the number of threads. So a grammar of many choices is compiled several times,
each compile for `SHARED` choices at first, until there are several for each thread. A compile takes
a millisecond or two, and what its masks have made known of it a megabyte.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from llguidance import LLMatcher, LLTokenizer

from engine.config import StructuredConfig
from engine.structured.limits import parser_limits
from engine.structured.matcher import error_of

SHARED = 4
"""Choices of one compile before the next is made."""


def default_threads() -> int:
    """A quarter of the CPUs that the process may use, from 2 to 8: others fill masks meanwhile."""
    return min(max(len(os.sched_getaffinity(0)) // 4, 2), 8)


class GrammarError(Exception):
    """A grammar cannot be compiled; the message says why."""


@dataclass(eq=False)
class CompiledGrammar:
    """One compile of a grammar, under way or done.

    Attributes:
        number: tells compiles apart; matchers of one number share a lock.
        matcher: at the beginning of the grammar, to be copied; or a `GrammarError`.
        num_choices: choices that hold a copy or wait for one.
    """

    number: int
    matcher: Future[LLMatcher]
    num_choices: int = 0


class GrammarCompiler:
    """Compiles grammars and keeps those that were asked for last.

    llguidance releases the interpreter while it compiles. One thread asks; `on_compiled` is called
    on others.

    Args:
        cache_size: grammars that are kept.
        max_shares: compiles of one grammar at most.

    Attributes:
        num_compiles, num_cache_hits: see `GrammarStats`.
        seconds: time of all compiles, summed over threads.
    """

    def __init__(
        self,
        config: StructuredConfig,
        tokenizer: LLTokenizer,
        on_compiled: Callable[[], None],
        cache_size: int,
        max_shares: int = 1,
    ) -> None:
        self._limits = config.limits
        self._parser_limits = parser_limits(config.limits)
        self._size = cache_size
        self._max_shares = max_shares
        self._tokenizer = tokenizer
        self._on_compiled = on_compiled
        self._lock = threading.Lock()
        threads = config.compile_threads or default_threads()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="grammar")
        self._cache: OrderedDict[bytes, list[CompiledGrammar]] = OrderedDict()
        self.num_compiles = self.num_cache_hits = 0
        self.seconds = 0.0

    def compile(self, source: str, num_choices: int = 1) -> CompiledGrammar:
        """A compile of the grammar for choices, which are counted in it."""
        key = hashlib.sha256(source.encode()).digest()
        shares = self._cache.setdefault(key, [])
        self._cache.move_to_end(key)
        compiled = min(shares, key=lambda share: share.num_choices, default=None)
        if compiled is None or (
            compiled.num_choices + num_choices > SHARED and len(shares) < self._max_shares
        ):
            compiled = CompiledGrammar(
                self.num_compiles, self._threads.submit(self._compile, source)
            )
            self.num_compiles += 1
            shares.append(compiled)
            compiled.matcher.add_done_callback(lambda _: self._on_compiled())
        else:
            self.num_cache_hits += 1
        compiled.num_choices += num_choices
        if len(self._cache) > self._size:
            self._cache.popitem(last=False)
        return compiled

    def _compile(self, source: str) -> LLMatcher:
        began = time.perf_counter()
        try:
            if len(source.encode()) > self._limits.max_source_bytes:
                raise GrammarError(f"its source is over {self._limits.max_source_bytes} bytes")
            matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=self._parser_limits)
            if not matcher.is_error():
                matcher.compute_bitmask()  # builds what the first masks need
            if matcher.is_error():
                raise GrammarError(error_of(matcher))
            return matcher
        finally:
            with self._lock:
                self.seconds += time.perf_counter() - began
