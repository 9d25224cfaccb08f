"""Requests of a trainer to a server, and the pauses that streams see meanwhile."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import statistics
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import torch

from benchmarks.shared_weights import Info

NUM_STREAMS, NUM_BEFORE = 8, 20
PROMPT = 64
"""Tokens of a prompt."""
LONG_GAP = 3.0
"""A gap of so many steps is a pause."""


class Client:
    """Requests to the server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def send(self, path: str, body: Any = None, *, method: str = "POST") -> bytes:
        async with self._session.request(method, self._url + path, json=body) as reply:
            raw = await reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {raw[:500]!r}")
        return raw

    async def get(self, path: str) -> Any:
        return json.loads(await self.send(path, method="GET"))

    async def infos(self) -> list[Info]:
        found = (await self.get("/weights"))["weights"]
        return [Info(each["name"], tuple(each["shape"])) for each in found]

    async def checksums(self) -> dict[str, str]:
        found = (await self.get("/weights?checksums=true"))["weights"]
        return {each["name"]: each["checksum"] for each in found}

    async def stream(self, index: int, times: list[float], runs: asyncio.Event) -> None:
        """Note when each token comes, until this is canceled; `runs` is set after a few."""
        params = {"max_tokens": 8000, "ignore_eos": True, "seed": index}
        body = {"token_ids": prompt(index), "sampling_params": params, "stream": True}
        url = f"{self._url}/inference/v1/generate"
        try:
            async with self._session.post(url, json=body) as reply:
                async for line in reply.content:
                    if line.startswith(b"data: {"):
                        times.append(time.perf_counter())
                    if len(times) == NUM_BEFORE:
                        runs.set()
        finally:
            runs.set()

    async def rollouts(self, count: int, length: int, seed: int, **params: Any) -> float:
        """Tokens a second of rollouts that are sent at once."""
        params |= {"max_tokens": length, "ignore_eos": True}
        bodies = [
            {"token_ids": prompt(seed + i), "sampling_params": params | {"seed": i}}
            for i in range(count)
        ]
        started = time.perf_counter()
        await asyncio.gather(*(self.send("/inference/v1/generate", body) for body in bodies))
        return count * length / (time.perf_counter() - started)


def prompt(seed: int) -> list[int]:
    """A prompt of its own."""
    ids: list[int] = torch.randint(
        1000, 30_000, (PROMPT,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    return ids


@asynccontextmanager
async def streaming(client: Client) -> AsyncIterator[list[list[float]]]:
    """Streams that run; gives the times of their tokens."""
    times: list[list[float]] = [[] for _ in range(NUM_STREAMS)]
    runs = [asyncio.Event() for _ in times]
    tasks = [
        asyncio.create_task(client.stream(i, *each))
        for i, each in enumerate(zip(times, runs, strict=True))
    ]
    for each in runs:
        await each.wait()
    yield times
    await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(result, asyncio.CancelledError):
            raise RuntimeError(f"a stream ended during an update: {result!r}")


def paused_s(times: list[list[float]], start: float, end: float) -> float:
    """Seconds by which gaps of a stream within a time are longer than a step: the median stream."""
    paused = []
    for own in times:
        pairs = list(itertools.pairwise(own))
        step = statistics.median(after - before for before, after in pairs)
        within = [b - a for a, b in pairs if b > start and a < end + step]
        paused.append(sum(gap - step for gap in within if gap > LONG_GAP * step))
    return statistics.median(paused)


class Update(NamedTuple):
    """What an update took.

    Attributes:
        seconds: for the trainer. paused: for streams.
        copying: in the engine, receiving and writing.
    """

    seconds: float
    paused: float
    copying: float


async def timed(client: Client, update: Callable[[], Coroutine[Any, Any, None]]) -> Update:
    """Do an update beside streams."""
    async with streaming(client) as times:
        start = time.perf_counter()
        await update()
        end = time.perf_counter()
    copying = (await client.get("/weight_info"))["last_update"]["seconds"]
    return Update(end - start, paused_s(times, start, end), copying)


async def by_handles(client: Client, infos: list[Info], raw: bytes, *, one: bool) -> None:
    info: dict[str, Any] = {
        "names": [info.name for info in infos],
        "dtype_names": ["bfloat16"] * len(infos),
        "shapes": [info.shape for info in infos],
        "ipc_handles_pickled": base64.b64encode(raw).decode(),
    }
    if one:
        info["tensor_sizes"] = [info.num_bytes for info in infos]
    await client.send("/start_weight_update", {})
    await client.send("/update_weights", {"update_info": info})
    await client.send("/finish_weight_update", {})
