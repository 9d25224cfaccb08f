"""Checks off the event loop: bounded in time, memory and number, and once for equal grammars."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import structs

from server.errors import ApiError
from server.structured import checker as checker_module
from server.structured.checker import GrammarChecker
from server.structured.spec import GrammarKind, GrammarSpec
from server.text.tokenizer import Tokenizer
from server.work.processes import CallNotBegunError
from tests.fakes import FakeEngine, byte_tokenizer
from tests.server.conftest import eventually
from tests.server.slowness import slowness
from tests.server.structured.slow_grammars import NEVER_ENDS
from tests.server.waits import LIMIT_S, longest_wait

PATIENCE_S = 100.0
"""Longer than any start of a process takes: what never ends is not ended before."""


def tokenizer() -> Tokenizer:
    made = byte_tokenizer()
    made.reserve(264)
    return made


def spec(kind: GrammarKind, value: Any, **options: Any) -> GrammarSpec:
    return GrammarSpec(kind, value, "here", **options)


@pytest.fixture
async def checker() -> AsyncIterator[GrammarChecker]:
    made = GrammarChecker(tokenizer(), FakeEngine().info)
    yield made
    made.close()


async def refusal(checker: GrammarChecker, wanted: GrammarSpec) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await checker.check(wanted)
    return caught.value


async def test_equal_grammars_are_checked_once(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    ask = checker._ask

    async def counted(raw: bytes, param: str) -> Any:
        asked.append(raw)
        return await ask(raw, param)

    monkeypatch.setattr(checker, "_ask", counted)
    wanted = spec("choice", ["a", "b"])
    found = await asyncio.gather(*(checker.check(wanted) for _ in range(20)))
    assert len({id(each) for each in found}) == 1
    assert len(asked) == 1
    for _ in range(3):
        assert (await refusal(checker, spec("regex", "["))).param == "here"
    assert len(asked) == 2
    await checker.check(spec("json", {}))
    await checker.check(spec("json", {}, lenient=True))  # other options, another grammar
    assert len(asked) == 4


async def test_one_that_goes_away_leaves_the_others(checker: GrammarChecker) -> None:
    wanted = spec("choice", ["a"])
    first, second = (asyncio.create_task(checker.check(wanted)) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    assert (await second).source
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_what_never_ends_hinders_nobody() -> None:
    checker = GrammarChecker(tokenizer(), FakeEngine().info, check_s=PATIENCE_S)
    await checker.check(spec("choice", ["a"]))
    endless = asyncio.create_task(refusal(checker, spec("json", NEVER_ENDS)))
    try:
        await eventually(checker._pool._idle.empty)  # the first process has it
        assert (await checker.check(spec("regex", "a+"))).source
        assert not endless.done()
    finally:
        checker.close()
        await endless


async def test_what_never_ends_is_ended() -> None:
    checker = GrammarChecker(tokenizer(), FakeEngine().info, check_s=PATIENCE_S)
    try:
        await checker.check(spec("choice", ["a"]))
        [process] = checker._pool._processes
        checker._check_s = 0.5
        error = await refusal(checker, spec("json", NEVER_ENDS))
        assert (error.status, error.param, error.code) == (400, "here", "grammar_too_large")
        assert "0.5 s" in error.message
        assert not process.is_alive
        assert checker._pool._processes == []
        await refusal(checker, spec("json", NEVER_ENDS))  # known by now, so none is asked
        assert checker._pool._processes == []
        assert (await checker.check(spec("regex", "b+"))).source
    finally:
        checker.close()


async def test_the_event_loop_goes_on(checker: GrammarChecker) -> None:
    """However much there is to compile: the longest pause is that of other work off the loop."""
    await checker.check(spec("choice", ["warm"]))
    patterns = {f"p{i}": {"type": "string", "pattern": f"^[a-z]{{{i}}}$"} for i in range(300)}
    numbers = itertools.count()
    for kind, value in (
        ("regex", "a" * 2**15),
        ("choice", [f"choice number {i}" for i in range(8192)]),
        ("json", {"enum": [f"value number {i}" for i in range(8192)]}),
        ("json", {"type": "object", "properties": patterns}),
        ("json", {"type": "object", "properties": {**patterns, "x": {"not": {}}}}),
    ):

        async def check(kind: Any = kind, value: Any = value) -> None:
            wanted = GrammarSpec(kind, value, f"here{next(numbers)}")  # known to no cache
            with contextlib.suppress(ApiError):
                await checker.check(wanted)

        assert await longest_wait(check) < LIMIT_S * slowness(), kind


async def test_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = GrammarChecker(tokenizer(), FakeEngine().info)
    monkeypatch.setattr(checker._pool, "_max_waiting", 2)
    try:
        tasks = [asyncio.create_task(checker.check(spec("choice", [str(i)]))) for i in range(2)]
        await eventually(lambda: checker._pool._num_waiting == 2)
        error = await refusal(checker, spec("choice", ["x"]))
        assert error.status == 429
        assert "retry-after" in error.headers
        await asyncio.gather(*tasks)
        assert (await checker.check(spec("choice", ["x"]))).source
    finally:
        checker.close()


async def test_the_cache_is_bounded(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checker_module, "CACHE_BYTES", 20_000)
    for i in range(20):
        await checker.check(spec("choice", [str(i)]))
    assert len(checker._cache) == len(checker._sizes) < 10
    assert sum(checker._sizes.values()) <= 20_000


async def test_a_model_without_grammars() -> None:
    info = structs.replace(FakeEngine().info, grammar_error="its tokenizer is odd")
    checker = GrammarChecker(tokenizer(), info)
    error = await refusal(checker, spec("json", {}))
    assert (error.status, error.param, error.code) == (400, "here", "grammars_not_available")
    assert "its tokenizer is odd" in error.message
    checker.close()


async def test_a_server_may_be_lenient_in_every_request() -> None:
    schema = {"type": "string", "not": {"pattern": "x"}}
    strict = GrammarChecker(tokenizer(), FakeEngine().info, check_s=PATIENCE_S)
    assert (await refusal(strict, spec("json", schema))).param == "here.not"
    strict.close()
    lenient = GrammarChecker(tokenizer(), FakeEngine().info, is_lenient=True, check_s=PATIENCE_S)
    assert (await lenient.check(spec("json", schema))).ignored == ["here.not"]
    lenient.close()


async def test_processes_end_with_the_checker() -> None:
    checker = GrammarChecker(tokenizer(), FakeEngine().info, check_s=PATIENCE_S)
    await checker.check(spec("choice", ["a"]))
    busy = asyncio.create_task(refusal(checker, spec("json", NEVER_ENDS)))
    await eventually(checker._pool._idle.empty)  # the first process has it
    await checker.check(spec("choice", ["b"]))
    processes = list(checker._pool._processes)
    assert [process.is_alive for process in processes] == [True, True]
    checker.close()
    began = time.monotonic()
    assert (await busy).code == "grammar_too_large"
    assert time.monotonic() - began < PATIENCE_S / 2  # not after the whole time it may take
    await eventually(lambda: not any(process.is_alive for process in processes))


async def test_a_check_that_could_not_begin_is_not_remembered(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for who asked, nor for those who waited with them; a later one is served."""

    async def fails(*arguments: Any) -> Any:
        raise CallNotBegunError

    wanted, run = spec("choice", ["a", "b"]), checker._pool.run
    monkeypatch.setattr(checker._pool, "run", fails)
    both = await asyncio.gather(*(checker.check(wanted) for _ in range(2)), return_exceptions=True)
    assert [type(each) for each in both] == [CallNotBegunError] * 2
    monkeypatch.setattr(checker._pool, "run", run)
    assert (await checker.check(wanted)).source
    assert checker._sizes.keys() == checker._cache.keys()
