"""Running responses of several fronts over one file: who ends them, and who notices."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from server.config import ResponseStoreConfig
from server.response_store import store as module
from server.response_store.store import ResponseStore
from tests.server.conftest import eventually
from tests.server.response_store.stored import new


@pytest.fixture
async def fronts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[ResponseStore]]:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    stores = [ResponseStore(ResponseStoreConfig(str(tmp_path / "responses.db"))) for _ in range(2)]
    yield stores
    for store in stores:
        store.close()


async def begun(store: ResponseStore, response_id: str) -> tuple[int, asyncio.Event]:
    """A response that runs: its key, and what is set when a client cancels it."""
    cancelled = asyncio.Event()
    return await store.begin(new(response_id), cancelled.set), cancelled


async def test_another_front_cancels_whenever_there_was_nothing_to_watch_before(
    fronts: list[ResponseStore],
) -> None:
    own, other = fronts
    for i in range(3):
        key, cancelled = await begun(own, f"resp_{i}")
        await other.cancel(key)
        await asyncio.wait_for(cancelled.wait(), 30)
        await own.finish(key, "cancelled", {"id": f"resp_{i}", "status": "cancelled"}, [], None)
        await eventually(lambda: own._watching is None)


async def test_the_file_is_closed_with_the_store(tmp_path: Path) -> None:
    def num_files() -> int:
        return len(list(tmp_path.iterdir()))

    store = ResponseStore(ResponseStoreConfig(str(tmp_path / "responses.db")))
    await store.get(b"", "none")
    assert num_files() > 1, "a log is beside it"
    store.close()
    await eventually(lambda: num_files() == 1)


async def test_only_the_one_that_was_named_is_cancelled(fronts: list[ResponseStore]) -> None:
    own, other = fronts
    (_, first), (key, second), (_, third) = [await begun(own, f"resp_{i}") for i in range(3)]
    await other.cancel(key)
    await asyncio.wait_for(second.wait(), 30)
    assert not first.is_set()
    assert not third.is_set()


async def test_one_that_has_ended_is_not_cancelled(fronts: list[ResponseStore]) -> None:
    own, other = fronts
    (key, first), (kept, second) = [await begun(own, f"resp_{i}") for i in range(2)]
    await own.discard(key)
    for each in (key, kept):
        await other.cancel(each)
    await asyncio.wait_for(second.wait(), 30)
    assert not first.is_set()


async def test_one_that_runs_for_long_gives_signs(
    fronts: list[ResponseStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOUCH_S", 0.02)
    await begun(fronts[0], "resp_1")
    with closing(sqlite3.connect(tmp_path / "responses.db")) as file:

        def used() -> float:
            return float(file.execute("SELECT used FROM responses").fetchone()[0])

        first = used()
        await eventually(lambda: used() > first)
