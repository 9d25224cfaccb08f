"""Calls on a thread of their own: in order, each answered, and ended where they take too long."""

from __future__ import annotations

import asyncio
import fcntl
import threading
import time
from collections.abc import AsyncIterator

import pytest

from server.errors import ApiError
from server.work import bounded as module
from server.work.bounded import BoundedThread


@pytest.fixture
async def thread() -> AsyncIterator[BoundedThread]:
    thread = BoundedThread("bounded")
    yield thread
    thread.close()


def endless() -> None:
    while True:
        pass


async def test_calls_are_answered_in_their_order(thread: BoundedThread) -> None:
    ran: list[int] = []
    calls = [thread.run(10.0, ran.append, i) for i in range(100)]
    await asyncio.gather(*calls)
    assert ran == list(range(100))


async def test_what_a_call_raises_is_raised(thread: BoundedThread) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await thread.run(10.0, int, "x")
    assert await thread.run(10.0, int, "7") == 7


async def test_more_calls_than_a_pipe_holds(
    thread: BoundedThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call writes a byte that wakes the thread; who waits must not wait for room."""
    monkeypatch.setattr(module, "MAX_WAITING", 10_000)
    gate = threading.Event()
    first = asyncio.create_task(thread.run(60.0, gate.wait))
    await asyncio.sleep(0)
    size = fcntl.fcntl(thread._wake, fcntl.F_SETPIPE_SZ, 4096)
    calls = [asyncio.create_task(thread.run(60.0, abs, -i)) for i in range(size + 1000)]
    await asyncio.sleep(0)
    gate.set()
    assert await first
    assert await asyncio.gather(*calls) == list(range(size + 1000))


async def test_one_that_takes_too_long_is_ended(thread: BoundedThread) -> None:
    with pytest.raises(TimeoutError):
        await thread.run(0.1, endless)
    assert await thread.run(5.0, int, "7") == 7


async def test_one_that_nobody_waits_for_any_more_is_ended(thread: BoundedThread) -> None:
    task = asyncio.create_task(thread.run(60.0, endless))
    await thread_is_busy(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await thread.run(5.0, int, "7") == 7


async def thread_is_busy(task: asyncio.Task[None]) -> None:
    await asyncio.sleep(0.1)
    assert not task.done()


async def test_the_end_comes_behind_the_calls_that_wait() -> None:
    thread = BoundedThread("closing")
    calls = [asyncio.create_task(thread.run(10.0, abs, -i)) for i in range(3)]
    await asyncio.sleep(0)
    thread.close()
    assert await asyncio.gather(*calls) == [0, 1, 2]
    limit = time.monotonic() + 5.0
    while any(each.name == "closing" for each in threading.enumerate()):
        assert time.monotonic() < limit
        await asyncio.sleep(0.01)


async def test_too_many_calls_are_refused(
    thread: BoundedThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    began, gate = threading.Event(), threading.Event()

    def wait() -> bool:
        began.set()
        return gate.wait()

    first = asyncio.create_task(thread.run(60.0, wait))
    await asyncio.to_thread(began.wait)
    calls = [asyncio.create_task(thread.run(60.0, abs, -i)) for i in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="3 requests wait for the thread bounded") as refused:
        await calls.pop()
    assert refused.value.status == 429
    gate.set()
    assert await first
    assert await asyncio.gather(*calls) == [0, 1, 2]


def asleep() -> bool:
    time.sleep(0.2)
    return True


async def test_time_counts_from_a_calls_own_start(thread: BoundedThread) -> None:
    """The second waits for as long as it may take itself, and then sleeps for half as long."""
    first = asyncio.create_task(thread.run(0.4, endless))
    second = asyncio.create_task(thread.run(0.4, asleep))
    with pytest.raises(TimeoutError):
        await first
    assert await second
