"""Ten thousand requests, a third of the clients gone midway: nothing is left behind."""

from __future__ import annotations

import asyncio
import random
import time

import aiohttp
import numpy as np
import psutil
import pytest

from tests.serving.process import Server, serve

NUM_REQUESTS = 10_000
NUM_PARTS = 8
CONCURRENCY = 128


async def _one(session: aiohttp.ClientSession, url: str, model: str, rng: random.Random) -> str:
    body = {
        "model": model,
        "prompt": [rng.randrange(5, 8000) for _ in range(rng.randrange(1, 80))],
        "max_tokens": rng.randrange(1, 24),
        "n": rng.choice([1, 1, 1, 2]),
        "stream": rng.random() < 0.5,
        "temperature": rng.choice([0, 1.0]),
        "logprobs": rng.choice([None, None, 3]),
    }
    hang_up = rng.random() < 1 / 3
    try:
        async with session.post(f"{url}/v1/completions", json=body) as reply:
            if hang_up and body["stream"]:
                await reply.content.readany()
                reply.close()
                return "hung up"
            await reply.read()
            return str(reply.status)
    except TimeoutError:
        return "hung up"


async def _hurried(session: aiohttp.ClientSession, url: str, model: str, seed: int) -> str:
    """A third of the non-streaming clients give up while they wait, as a timeout would."""
    rng = random.Random(seed)
    if rng.random() < 1 / 3:
        try:
            async with asyncio.timeout(rng.uniform(0.0, 0.3)):
                return await _one(session, url, model, rng)
        except TimeoutError:
            return "hung up"
    return await _one(session, url, model, rng)


async def _flood(server: Server, model: str, first: int, count: int) -> dict[str, int]:
    limit = asyncio.Semaphore(CONCURRENCY)
    outcomes: dict[str, int] = {}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def guarded(seed: int) -> None:
            async with limit:
                outcome = await _hurried(session, server.url, model, seed)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1

        await asyncio.gather(*(guarded(first + i) for i in range(count)))
    return outcomes


def _private_bytes(server: Server) -> dict[str, int]:
    supervisor = psutil.Process(server.process.pid)
    processes = {"server": [supervisor, *server.fronts], "engine": [server.engine]}
    return {
        name: sum(process.memory_full_info().uss for process in several)
        for name, several in processes.items()
    }


def _sum(metrics: dict[str, float], prefix: str) -> float:
    return sum(value for name, value in metrics.items() if name.startswith(prefix))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_nothing_is_left_behind() -> None:
    outcomes: dict[str, int] = {}
    sizes: list[dict[str, int]] = []
    size_of_part = NUM_REQUESTS // NUM_PARTS
    # A cache small enough that the first requests touch every page of it.
    with serve("--num-gpu-blocks-override", "1000") as server:
        model = server.client.models.list().data[0].id
        for part in range(NUM_PARTS):
            flood = _flood(server, model, part * size_of_part, size_of_part)
            for outcome, count in asyncio.run(flood).items():
                outcomes[outcome] = outcomes.get(outcome, 0) + count
            time.sleep(1)
            sizes.append(_private_bytes(server))
        metrics = server.metrics()
    print(outcomes, sizes)
    assert set(outcomes) == {"200", "hung up"}
    assert outcomes["hung up"] > NUM_REQUESTS // 4
    assert _sum(metrics, "tailrace_num_requests_running") == 0
    assert _sum(metrics, "tailrace_num_requests_waiting") == 0
    assert _sum(metrics, "tailrace_kv_cache_usage_perc") == 0
    for name in ("server", "engine"):
        # Pools grow by megabytes at once and seldom; half a kilobyte kept of each request would
        # show in every part.
        growth = np.median(np.diff([size[name] for size in sizes[2:]]))
        assert growth < 512 * size_of_part, f"{name} grew: {[size[name] for size in sizes]}"
    received = _sum(metrics, "tailrace_requests_received_total")
    assert received == _sum(metrics, "tailrace_request_outcomes_total")
    assert 0 < received <= NUM_REQUESTS
