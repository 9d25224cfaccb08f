"""The self-test's process: its end, its limit, its failures."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from server.errors import ApiError
from server.fronts import FrontTable, make_table_file
from server.self_test import SelfTest

FOREVER = (sys.executable, "-c", "import time; print('{}', flush=True); time.sleep(600)")


async def run(code: str, limit_s: float = 60.0) -> list[dict[str, Any]]:
    test = SelfTest((sys.executable, "-c", code), FrontTable(), limit_s)
    return [json.loads(line) async for line in test.begin()]


@pytest.mark.parametrize(("status", "end"), [(0, "done"), (1, "done"), (3, "failed")])
async def test_the_last_line_tells_how_it_ended(status: int, end: str) -> None:
    lines = await run(f"print('{{}}'); raise SystemExit({status})")
    assert [line.get("end") for line in lines] == [None, end]


async def test_a_limit_of_time() -> None:
    lines = await run("import time; print('{}', flush=True); time.sleep(600)", limit_s=0.5)
    assert lines[-1]["end"] == "stopped"
    assert lines[-1]["seconds"] >= 0.5


async def test_a_program_that_is_not_there() -> None:
    test = SelfTest(("/nonexistent",), FrontTable())
    with pytest.raises(FileNotFoundError):
        await anext(test.begin())
    with pytest.raises(FileNotFoundError):  # and not that it is running
        await anext(test.begin())


async def test_two_that_began_at_once() -> None:
    test = SelfTest(FOREVER, FrontTable(), 30.0)
    first, second = test.begin(), test.begin()
    task = asyncio.ensure_future(anext(first))
    await asyncio.sleep(0)
    assert json.loads(await anext(second))["end"] == "busy"
    with pytest.raises(ApiError, match="running"):
        test.begin()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_one_over_all_fronts() -> None:
    fd = make_table_file(2)
    here, there = (SelfTest(FOREVER, FrontTable(2, index, fd), 30.0) for index in range(2))
    allowed = there.begin()
    first = here.begin()
    assert await anext(first) == b"{}\n"
    with pytest.raises(ApiError, match="running"):
        there.begin()
    assert json.loads(await anext(allowed))["end"] == "busy"
    await first.aclose()  # its reader leaves
    second = there.begin()
    assert await anext(second) == b"{}\n"
    with pytest.raises(ApiError, match="running"):
        here.begin()
    FrontTable(2, fd=fd).clear(1)  # as the supervisor does once that front has died
    third = here.begin()
    assert await anext(third) == b"{}\n"
    await second.aclose()
    await third.aclose()
