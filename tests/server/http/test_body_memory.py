"""Leases of memory: in order, never more than there is, and none lost."""

from __future__ import annotations

import asyncio

import pytest

from server.errors import ApiError
from server.http import body_memory as module
from server.http.body_memory import BodyMemory, Lease


async def waiting(memory: BodyMemory, num_bytes: int) -> asyncio.Task[Lease]:
    task = asyncio.create_task(memory.lease(num_bytes))
    await asyncio.sleep(0)
    return task


async def test_who_finds_none_waits_in_order() -> None:
    memory = BodyMemory(100)
    first, second = await memory.lease(60), await memory.lease(40)
    large, small = await waiting(memory, 80), await waiting(memory, 10)
    second.release()
    second.release()
    await asyncio.sleep(0)
    assert not small.done(), "it would pass the large one for ever"
    first.release()
    await asyncio.gather(large, small)
    assert memory._taken == 90


async def test_more_than_there_is_waits_for_all_of_it() -> None:
    memory = BodyMemory(100)
    first = await memory.lease(1)
    all_of_it = await waiting(memory, 10**9)
    assert not all_of_it.done()
    first.release()
    (await all_of_it).release()
    assert memory._taken == 0


async def test_who_goes_away_leaves_its_turn_to_others() -> None:
    memory = BodyMemory(100)
    first = await memory.lease(100)
    gone, late, next_one = [await waiting(memory, 100) for _ in range(3)]
    gone.cancel()
    first.release()  # the turn of `late`, which is cancelled before it hears of it
    late.cancel()
    await asyncio.gather(gone, late, return_exceptions=True)
    await asyncio.wait_for(next_one, 5)
    assert memory._taken == 100


async def test_who_goes_away_holds_up_nobody_who_fits() -> None:
    memory = BodyMemory(128)
    await memory.lease(100)
    gone, small = [await waiting(memory, size) for size in (100, 10)]
    gone.cancel()
    await asyncio.wait_for(small, 5)
    assert memory._taken == 110


async def test_too_many_who_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 1)
    memory = BodyMemory(100)
    first = await memory.lease(100)
    second = await waiting(memory, 1)
    with pytest.raises(ApiError, match="large bodies wait") as refused:
        await memory.lease(1)
    assert refused.value.status == 429
    first.release()
    await second


async def test_who_may_not_wait_is_refused_at_once() -> None:
    memory = BodyMemory(100)
    first = await memory.lease(60)
    second = await memory.lease(40, may_wait=False)
    with pytest.raises(ApiError, match="is taken") as refused:
        await memory.lease(1, may_wait=False)
    assert refused.value.status == 429
    second.release()
    third = await waiting(memory, 50)
    with pytest.raises(ApiError):
        await memory.lease(1, may_wait=False)  # it would pass the one that waits
    first.release()
    await third
