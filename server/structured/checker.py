"""Grammars of requests checked off the event loop: bounded, and once for all that are equal."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import queue
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import msgspec

from engine.config import EngineInfo
from server.errors import ApiError, bad_request, overloaded
from server.structured.process import CheckProcess
from server.structured.spec import CheckedGrammar, GrammarSpec, TokenTable
from server.text.tokenizer import Tokenizer

CHECK_S = 10.0
"""A schema of thousands of patterns takes one or two."""
NUM_PROCESSES = 2
"""A grammar that takes long need not hold up the others."""
MAX_WAITING = 64
CACHE_BYTES = 64 << 20
_REFUSAL_BYTES = 2048


class GrammarChecker:
    """Checks grammars; processes for that start with the first.

    Args:
        info: the engine's; its `grammar_error` refuses every grammar.
    """

    def __init__(self, tokenizer: Tokenizer, info: EngineInfo, *, check_s: float = CHECK_S) -> None:
        self._tokenizer = tokenizer
        self._info = info
        self._check_s = check_s
        self._threads = ThreadPoolExecutor(NUM_PROCESSES, thread_name_prefix="grammar-check")
        self._processes: list[CheckProcess] = []
        self._idle: queue.LifoQueue[CheckProcess] = queue.LifoQueue()
        self._cache: OrderedDict[bytes, asyncio.Task[CheckedGrammar | ApiError]] = OrderedDict()
        self._sizes: dict[bytes, int] = {}
        self._num_waiting = 0
        self._is_closed = False

    def check_served(self, param: str) -> None:
        """Raise a 400 for a field that needs masks where the engine has none."""
        if self._info.grammar_error is not None:
            raise bad_request(
                param,
                f"{param} cannot be served by this model: {self._info.grammar_error}",
                "grammars_not_available",
            )

    async def check(self, spec: GrammarSpec) -> CheckedGrammar:
        """The grammar as the engine takes it.

        Raises:
            ApiError: it is refused; or too many wait to be checked.
        """
        self.check_served(spec.param)
        raw = spec.packed()
        key = hashlib.sha256(raw).digest()
        checking = self._cache.get(key)
        if checking is None:
            if self._num_waiting >= MAX_WAITING:
                raise overloaded(f"{MAX_WAITING} grammars wait to be compiled")
            self._num_waiting += 1
            checking = asyncio.create_task(self._check(key, spec, raw))
            self._cache[key] = checking
        self._cache.move_to_end(key)
        # Others may wait for it too: who goes away leaves it running.
        checked = await asyncio.shield(checking)
        if isinstance(checked, ApiError):
            raise copy.copy(checked)  # each gets a traceback of its own
        return checked

    async def _check(self, key: bytes, spec: GrammarSpec, raw: bytes) -> CheckedGrammar | ApiError:
        """Ask a process; refusals are kept as well, since they are not cheaper to come by."""
        loop = asyncio.get_running_loop()
        size = _REFUSAL_BYTES
        try:
            checked = await loop.run_in_executor(self._threads, self._ask, spec, raw)
            size += len(checked.source) * (1 + (checked.reduced is not None)) + len(checked.first)
        except ApiError as error:
            return error
        except BaseException:
            del self._cache[key]
            raise
        else:
            return checked
        finally:
            self._num_waiting -= 1
            self._keep(key, size)

    def _keep(self, key: bytes, size: int) -> None:
        if key in self._cache:
            self._sizes[key] = size
        for oldest in list(self._cache):
            if sum(self._sizes.values()) <= CACHE_BYTES:
                break
            if oldest in self._sizes and oldest != key:
                del self._cache[oldest], self._sizes[oldest]

    def _ask(self, spec: GrammarSpec, raw: bytes) -> CheckedGrammar:
        """In a thread: check in a process that nobody else asks."""
        try:
            process = self._idle.get_nowait()
        except queue.Empty:
            process = CheckProcess(self._vocabulary(), self._check_s)
            self._processes.append(process)
            if self._is_closed:
                process.kill()
        try:
            return process.check(spec, raw)
        finally:
            if process.is_alive:
                self._idle.put(process)
            else:
                self._processes.remove(process)

    def _vocabulary(self) -> bytes:
        """The model's tokens, as they are sent to a process."""
        vocab_size = self._info.vocab_size
        vocabulary = TokenTable(
            tokens=self._tokenizer.raw[:vocab_size],
            special_ids=sorted(i for i in self._tokenizer.special_ids if i < vocab_size),
            eos_ids=list(self._info.eos_token_ids),
        )
        return msgspec.msgpack.encode(vocabulary)

    def close(self) -> None:
        """End the processes and threads."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
