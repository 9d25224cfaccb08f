"""Calls in other processes: answered, bounded in time and memory, and none held up by another."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from server.errors import ApiError, bad_request
from server.work import processes
from server.work.processes import (
    BoundedProcess,
    CallEndedError,
    CallNotBegunError,
    Preparation,
    ProcessPool,
)

MEMORY_BYTES = 256 << 20
_made: list[str] = []


def make_ready(word: str) -> None:
    _made.append(word)


def made() -> list[str]:
    return _made


def endless_operation() -> int:
    return sum(range(10**12))


def fill(num_bytes: int) -> int:
    return len(bytearray(num_bytes))


def refuse() -> None:
    raise bad_request("field", "it is refused", "code")


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    pool = ProcessPool(
        "tests", 2, setup=lambda: Preparation(make_ready, ("word",)), memory_bytes=MEMORY_BYTES
    )
    yield pool
    pool.close()


async def test_what_a_function_returns_or_raises(pool: ProcessPool) -> None:
    assert await pool.run(30.0, int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await pool.run(30.0, int, "x")
    with pytest.raises(ApiError, match="it is refused") as refused:
        await pool.run(30.0, refuse)
    assert (refused.value.status, refused.value.param) == (400, "field")


class Large:
    """What stands for a large argument: it can be seen to be gone."""


def refuse_it(large: Large) -> None:
    raise bad_request("field", f"no {type(large).__name__}")


async def test_an_error_keeps_no_arguments(pool: ProcessPool) -> None:
    gc.disable()  # a front collects cycles seldom, and 4 MB in each are soon 100
    try:
        large = Large()
        gone = asyncio.Event()
        weakref.finalize(large, asyncio.get_running_loop().call_soon_threadsafe, gone.set)
        with pytest.raises(ApiError, match="no Large") as caught:
            await pool.run(5.0, refuse_it, large)
        del large, caught
        await asyncio.wait_for(gone.wait(), 5)  # the pool's thread still has it for a moment
    finally:
        gc.enable()


def reported(*args: object) -> list[tuple[str, object]]:
    return [(type(arg).__name__, arg) for arg in args]


async def test_large_bytes_go_beside_the_pickle(
    pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They arrive as bytes, in their places, and no copy of them is made on the way."""
    large, larger = bytes(range(256)) * 1024, bytearray(b"ab") * (1 << 20)
    pickled: list[int] = []
    dumps = pickle.dumps

    def noted(*args: Any, **options: Any) -> bytes:
        text = dumps(*args, **options)
        pickled.append(len(text))
        return text

    monkeypatch.setattr(pickle, "dumps", noted)
    found = await pool.run(30.0, reported, larger, b"small", large, 7)
    assert found == [
        ("bytes", bytes(larger)),
        ("bytes", b"small"),
        ("bytes", large),
        ("int", 7),
    ]
    assert max(pickled) < 1000


async def test_processes_are_made_ready_and_stay(pool: ProcessPool) -> None:
    assert await pool.run(30.0, made) == ["word"]
    pids = {await pool.run(30.0, os.getpid) for _ in range(8)}
    assert len(pids) == 1
    assert os.getpid() not in pids


async def test_one_operation_that_takes_too_long_is_ended(pool: ProcessPool) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await pool.run(0.3, endless_operation)
    assert await pool.run(30.0, int, "7") == 7
    assert time.monotonic() - began < 60


async def test_memory_is_bounded(pool: ProcessPool) -> None:
    assert await pool.run(30.0, fill, MEMORY_BYTES // 2) == MEMORY_BYTES // 2
    with pytest.raises(MemoryError):
        await pool.run(30.0, fill, 2 * MEMORY_BYTES)
    assert await pool.run(30.0, fill, MEMORY_BYTES // 2) == MEMORY_BYTES // 2, "it was given back"


async def test_a_process_that_ends_is_replaced(pool: ProcessPool) -> None:
    with pytest.raises(CallEndedError):
        await pool.run(30.0, os._exit, 3)
    assert await pool.run(30.0, int, "7") == 7


async def test_a_second_call_passes_a_slow_one(pool: ProcessPool) -> None:
    await asyncio.gather(*[pool.run(30.0, time.sleep, 0.2) for _ in range(2)])  # both have started
    slow = asyncio.create_task(pool.run(60.0, time.sleep, 3.0))
    await asyncio.sleep(0.1)
    assert await pool.run(30.0, int, "7") == 7
    assert not slow.done()
    await slow


async def test_time_counts_from_a_calls_own_start(pool: ProcessPool) -> None:
    """Of six calls two run at once; the last waits for longer than it may take."""
    calls = [pool.run(0.9, time.sleep, 0.4) for _ in range(6)]
    assert await asyncio.gather(*calls) == [None] * 6


async def test_too_many_calls_are_refused(
    pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_max_waiting", 3)
    calls = [asyncio.create_task(pool.run(30.0, time.sleep, 0.2)) for _ in range(4)]
    with pytest.raises(ApiError, match="3 requests wait for tests") as refused:
        await calls.pop()
    assert refused.value.status == 429
    assert await asyncio.gather(*calls) == [None] * 3


class StartsOnceMore:
    """A maker of processes whose first starts fail."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    def __call__(self, setup: Preparation | None, memory_bytes: int) -> BoundedProcess:
        if self.failures:
            raise self.failures.pop(0)
        return BoundedProcess(setup, memory_bytes)


async def test_a_start_that_fails_is_tried_again_and_holds_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None is taken for a call that took too long, or for one whose process ended."""
    failures = OSError("no more processes"), EOFError(), TimeoutError()
    monkeypatch.setattr(processes, "BoundedProcess", StartsOnceMore(*failures))
    pool = ProcessPool("tests", 1, max_waiting=1)
    try:
        for _ in failures:
            with pytest.raises(CallNotBegunError, match="no process for tests could be started"):
                await pool.run(30.0, int, "7")
        assert pool._processes == []
        assert await pool.run(30.0, int, "7") == 7
    finally:
        pool.close()


def ends_at_once() -> None:
    os._exit(1)


async def test_a_process_that_ends_while_it_gets_ready_is_no_call_s_end() -> None:
    pool = ProcessPool("tests", 1, setup=lambda: Preparation(ends_at_once))
    try:
        with pytest.raises(CallNotBegunError):
            await pool.run(30.0, int, "7")
        assert pool._processes == []
    finally:
        pool.close()


async def test_the_first_call_takes_the_process_that_was_started_ahead() -> None:
    pool = ProcessPool("tests", 2, setup=lambda: Preparation(make_ready, ("ahead",)))
    try:
        pool.start_ahead()
        assert await pool.run(30.0, made) == ["ahead"]
        assert len(pool._processes) == 1
    finally:
        pool.close()


async def test_a_start_ahead_that_fails_is_no_call_s_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "BoundedProcess", StartsOnceMore(OSError("no more processes")))
    pool = ProcessPool("tests", 1)
    try:
        pool.start_ahead()
        assert await pool.run(30.0, int, "7") == 7
    finally:
        pool.close()
