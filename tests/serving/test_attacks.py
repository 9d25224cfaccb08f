"""Requests for thousands of choices whose clients hang up: what a stranger's request waits for.

`tests/server/endpoints/test_attacks.py` measures the server alone, here the engine computes.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.serving.process import Server, serve
from tests.serving.watch import Watch

LONGER_S = 0.2
"""A stranger's one-token request waits at most so much longer."""
LEAVE_S = (0.0, 0.1)
"""Seconds until the client hangs up: at once, and when steps are full of its choices."""
WATCHED_S = 1.5
NUM_ATTEMPTS = 3
ATTACKS: dict[str, dict[str, Any]] = {
    "one token": {"prompt": ["a"] * 1024, "n": 4},
    "choices": {"prompt": ["a", "b", "c", "d"], "n": 1024},
    "30 tokens": {"prompt": [[i % 1000 + 5] * 30 for i in range(1024)], "n": 4},
    "300 tokens": {"prompt": [[i % 1000 + 5] * 300 for i in range(1024)], "n": 4},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """With one thread, so that what it computes is what one waits for."""
    with serve("--num-threads", "1") as running:
        yield running


async def ask_and_leave(server: Server, body: dict[str, Any], leave_s: float) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    raw = json.dumps({"max_tokens": 100, **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + raw)
    await writer.drain()
    await asyncio.sleep(leave_s)
    writer.close()
    await writer.wait_closed()


async def one_token(session: aiohttp.ClientSession, server: Server, watch: Watch) -> float:
    """Seconds that a stranger's request takes."""
    began = watch.now()
    body = {"prompt": "a", "max_tokens": 1}
    async with session.post(f"{server.url}/v1/completions", json=body) as reply:
        assert reply.status == 200, await reply.text()
        await reply.read()
    return watch.since(began)


async def longest_wait(server: Server, body: dict[str, Any], leave_s: float) -> float:
    """Of strangers' requests, one after the other, from before the attack until long after it."""
    watch = Watch(server)
    async with aiohttp.ClientSession() as session:
        attack = asyncio.create_task(ask_and_leave(server, body, leave_s))
        waits, ends = [], time.perf_counter() + leave_s + WATCHED_S
        while time.perf_counter() < ends or not attack.done():
            waits.append(await one_token(session, server, watch))
        await attack
    return max(waits)


async def longest_alone(server: Server) -> float:
    watch = Watch(server)
    async with aiohttp.ClientSession() as session:
        return max([await one_token(session, server, watch) for _ in range(50)])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("leave_s", LEAVE_S)
@pytest.mark.parametrize("name", ATTACKS)
def test_a_stranger_beside_4096_choices(server: Server, name: str, leave_s: float) -> None:
    alone = asyncio.run(longest_alone(server))
    waits = []
    for _ in range(NUM_ATTEMPTS):
        waits.append(asyncio.run(longest_wait(server, ATTACKS[name], leave_s)))
        await_idle(server)
    print(f"{name}, left after {leave_s} s: {waits}, alone {alone}")
    assert statistics.median(waits) < alone + LONGER_S


def await_idle(server: Server) -> None:
    """Wait until nothing of an attack is left."""
    deadline = time.monotonic() + 60
    while any(value for name, value in server.metrics().items() if "num_requests_" in name):
        assert time.monotonic() < deadline, "choices of a client that left go on"
        time.sleep(0.1)
