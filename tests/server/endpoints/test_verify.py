"""`/verify`: lines of a process, which ends with whoever asked for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

import psutil

from tests.server.conftest import error_of, eventually, in_process, on_a_port


def program(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


async def test_it_must_be_allowed() -> None:
    async with in_process() as site:
        reply = await site.client.post("/verify")
        assert reply.status_code == 404
        assert "--page-verify" in error_of(reply)["message"]


async def test_lines_come_as_they_are_printed() -> None:
    async with in_process(verify_command=program('print(\'{"check": "a"}\')')) as site:
        reply = await site.client.post("/verify")
        first, last = map(json.loads, reply.text.splitlines())
        assert first == {"check": "a"}
        assert last["end"] == "done"
        assert (await site.client.get("/server_info")).json()["verify"] is True


def children() -> list[psutil.Process]:
    """Self-tests that run; a child that has just ended has no command line any more."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is one, too
            if "sleep(600)" in str(child.cmdline()):
                found.append(child)
    return found


async def test_one_at_a_time_and_none_without_a_reader() -> None:
    code = "import time; print('{}', flush=True); time.sleep(600)"
    async with on_a_port(verify_command=program(code)) as site:
        async with site.client.stream("POST", "/verify") as reply:
            assert await anext(reply.aiter_lines()) == "{}"
            (child,) = children()
            assert child.nice() == 19
            second = await site.client.post("/verify")
            assert second.status_code == 409
            assert error_of(second)["code"] == "self_test_running"
        await eventually(lambda: not children(), seconds=30)
        for _ in range(600):  # the process has ended; its reader sees that a moment later
            async with site.client.stream("POST", "/verify") as reply:
                if reply.status_code == 200:
                    assert await anext(reply.aiter_lines()) == "{}"
                    break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("it never ran again")
