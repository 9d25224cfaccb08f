"""Grammars of requests checked off the event loop: bounded, and once for all that are equal."""

from __future__ import annotations

import asyncio
import copy
import hashlib
from collections import OrderedDict

import msgspec

from engine.contracts.info import EngineInfo
from server.errors import ApiError, bad_request
from server.structured.check_process import check, make_ready
from server.structured.spec import CheckedGrammar, GrammarSpec, TokenTable
from server.text.tokenizer import Tokenizer
from server.work.processes import CallEndedError, Preparation, ProcessPool

CHECK_S = 10.0
"""A schema of thousands of patterns takes one or two."""
NUM_PROCESSES = 2
"""A grammar that takes long need not hold up the others."""
MAX_WAITING = 64
TOO_MANY = 429
"""Status of a refusal that is no grammar's own."""
CACHE_BYTES = 64 << 20
_REFUSAL_BYTES = 2048


class GrammarChecker:
    """Checks grammars; processes for that start with the first.

    Args:
        info: the engine's; its `grammar_error` refuses every grammar.
        is_lenient: keywords of JSON schemas that cannot be enforced are dropped in every request.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        info: EngineInfo,
        *,
        is_lenient: bool = False,
        check_s: float = CHECK_S,
    ) -> None:
        self.is_lenient = is_lenient
        self._tokenizer = tokenizer
        self._info = info
        self._check_s = check_s
        self._pool = ProcessPool(
            "the compilation of grammars", NUM_PROCESSES, setup=self._setup, max_waiting=MAX_WAITING
        )
        self._cache: OrderedDict[bytes, asyncio.Task[CheckedGrammar | ApiError]] = OrderedDict()
        self._sizes: dict[bytes, int] = {}

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
        if self.is_lenient:
            spec = msgspec.structs.replace(spec, lenient=True)
        raw = spec.packed()
        key = hashlib.sha256(raw).digest()
        checking = self._cache.get(key)
        if checking is None:
            checking = asyncio.create_task(self._check(key, raw, spec.param))
            self._cache[key] = checking
        self._cache.move_to_end(key)
        # Others may wait for it too: who goes away leaves it running.
        checked = await asyncio.shield(checking)
        if isinstance(checked, ApiError):
            raise copy.copy(checked)  # each gets a traceback of its own
        return checked

    async def _check(self, key: bytes, raw: bytes, param: str) -> CheckedGrammar | ApiError:
        """Ask a process; refusals are kept as well, since they are not cheaper to come by."""
        size = _REFUSAL_BYTES
        try:
            checked = await self._ask(raw, param)
            size += len(checked.source) * (1 + (checked.reduced is not None)) + len(checked.first)
        except ApiError as error:
            if error.status == TOO_MANY:
                del self._cache[key]
            return error
        except BaseException:
            del self._cache[key]
            raise
        else:
            return checked
        finally:
            self._keep(key, size)

    def _keep(self, key: bytes, size: int) -> None:
        if key in self._cache:
            self._sizes[key] = size
        for oldest in list(self._cache):
            if sum(self._sizes.values()) <= CACHE_BYTES:
                break
            if oldest in self._sizes and oldest != key:
                del self._cache[oldest], self._sizes[oldest]

    async def _ask(self, raw: bytes, param: str) -> CheckedGrammar:
        try:
            return await self._pool.run(self._check_s, check, raw)
        except TimeoutError:
            words = f"more than {self._check_s:g} s to compile"
        except (MemoryError, CallEndedError):
            words = "too much memory to compile"
        raise bad_request(param, f"{param} takes {words}", "grammar_too_large")

    def _setup(self) -> Preparation:
        """What a process has to know: the model's tokens."""
        vocab_size = self._info.vocab_size
        vocabulary = TokenTable(
            tokens=self._tokenizer.raw[:vocab_size],
            special_ids=sorted(i for i in self._tokenizer.special_ids if i < vocab_size),
            eos_ids=list(self._info.eos_token_ids),
        )
        return Preparation(make_ready, (msgspec.msgpack.encode(vocabulary),))

    def close(self) -> None:
        """End the processes and threads."""
        self._pool.close()
