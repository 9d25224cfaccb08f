"""Updates of a server's weights, the pauses they make, its sleep, and rollouts with logprobs.

    python -m benchmarks.bench_rollouts --shape qwen3-0.6b

The server has random weights; those of the updates are random too. A trainer in a process of its
own shares them on the same GPU, one handle for each tensor, or one for a buffer of all. Streams run
beside every update: a pause is the time by which their gaps are longer than a step.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import torch
from safetensors.torch import load_file

from benchmarks.bench_serving import serving
from benchmarks.figures import Figure, figure, report
from benchmarks.shapes import SHAPES, TINY, write_shape
from benchmarks.shared_weights import Info, trainer, write_files
from engine.contracts.named_weights import checksum

SMALL, BIG = "qwen3-0.6b", "qwen3-8b"
FLAGS = (
    *("--load-format", "dummy", "--disable-uvicorn-access-log"),
    *("--enable-weight-updates", "--enable-sleep-mode"),
)
SHARES = {SMALL: "0.8", BIG: "0.5"}
"""Of the GPU's memory: the trainer's weights are on it too, and what an update keeps."""
FOLDER_S, IPC_S = {SMALL: 0.5, BIG: 6.0}, {SMALL: 0.05, BIG: 0.5}
PAUSE_MS, FREED, WAKE_S, LOGPROBS = 20.0, 0.95, {BIG: 3.0}, 0.97
NUM_UPDATES, NUM_STREAMS, NUM_BEFORE = 3, 8, 20
PROMPT, ROLLOUTS = 64, {SMALL: (512, 1024), TINY: (8, 16)}
"""Tokens of a prompt; requests and the tokens of each."""
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
        params = {"max_tokens": 30_000, "ignore_eos": True, "seed": index}
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


async def folder_figures(client: Client, shape: str, infos: list[Info]) -> list[Figure]:
    """Updates from a folder."""
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "weights"
        write_files(infos, folder)

        async def update() -> None:
            await client.send("/update_weights", {"weight_dir": str(folder)})

        updates = [await timed(client, update) for _ in range(NUM_UPDATES)]
        sums, path = await client.checksums(), next(folder.iterdir())
        for name, tensor in itertools.islice(load_file(path).items(), 8):
            if checksum(tensor.to(dtype)) != sums[name]:
                raise RuntimeError(f"weight {name} is not that of the folder")
    return figures_of(f"{shape}, weights from a folder", updates, FOLDER_S.get(shape))


async def handle_figures(client: Client, shape: str, infos: list[Info]) -> list[Figure]:
    """Updates by handles of another process, of each tensor and of one buffer."""
    made, before = list[Figure](), await client.checksums()
    sums: list[dict[str, str]] = []
    with trainer(infos) as handles:
        for one in (False, True):
            updates = []
            for _ in range(NUM_UPDATES):
                raw = handles(one)
                update = partial(by_handles, client, infos, raw, one=one)
                updates.append(await timed(client, update))
            sums.append(await client.checksums())
            kind = "one handle" if one else f"{len(infos)} handles"
            made += figures_of(f"{shape}, weights by CUDA IPC, {kind}", updates, IPC_S.get(shape))
    if sums[0] != sums[1] or any(sums[0][name] == before[name] for name in before):
        raise RuntimeError("weights are not the trainer's")
    return made


def figures_of(what: str, updates: list[Update], most: float | None) -> list[Figure]:
    """The figures of some updates: their medians."""
    print(what, [tuple(round(1e3 * each, 1) for each in update) for update in updates], flush=True)
    seconds = statistics.median(update.seconds for update in updates)
    paused = statistics.median(update.paused for update in updates)
    beyond = statistics.median(update.paused - update.copying for update in updates)
    return [
        figure(what, round(seconds, 4), "s", "<=", most, None),
        figure(f"{what}: streams pause", round(1e3 * paused, 1), "ms", "<=", None, None),
        figure(
            f"{what}: pause beyond the copy", round(1e3 * beyond, 1), "ms", "<=", PAUSE_MS, None
        ),
    ]


async def sleep_figures(client: Client, shape: str, free_before: int) -> list[Figure]:
    """What a sleep gives back, and how long it and the waking take."""
    body = {"token_ids": prompt(0), "sampling_params": {"max_tokens": 8, "temperature": 0}}
    drawn = json.loads(await client.send("/inference/v1/generate", body))["choices"][0]
    awake = free_before - torch.cuda.mem_get_info()[0]
    started = time.perf_counter()
    await client.send("/sleep?level=1")
    slept = time.perf_counter()
    asleep = free_before - torch.cuda.mem_get_info()[0]
    woken = time.perf_counter()
    await client.send("/wake_up")
    ended = time.perf_counter()
    again = json.loads(await client.send("/inference/v1/generate", body))["choices"][0]
    if again["token_ids"] != drawn["token_ids"]:
        raise RuntimeError("other tokens after the sleep")
    print(f"{shape}: {awake / 2**30:.2f} GiB awake, {asleep / 2**30:.2f} asleep", flush=True)
    share, must = round(1 - asleep / awake, 4), FREED if shape == SMALL else None
    return [
        figure(f"{shape}, sleep: share of memory given back", share, "share", ">=", must, 1.0),
        figure(f"{shape}, falling asleep", round(slept - started, 2), "s", "<=", None, None),
        figure(f"{shape}, waking", round(ended - woken, 2), "s", "<=", WAKE_S.get(shape), None),
    ]


async def rollout_figures(client: Client, shape: str) -> list[Figure]:
    """Rollouts with the logprobs of their tokens beside those without."""
    count, length = ROLLOUTS[shape]
    await client.rollouts(count, length // 16, 0)
    rates = []
    for seed, params in enumerate(({}, {"logprobs": 0}), start=1):
        rates.append(await client.rollouts(count, length, 10_000 * seed, **params))
    what, share = f"{shape}, {count} rollouts of {length:,} tokens", round(rates[1] / rates[0], 4)
    return [
        figure(what, round(rates[0]), "tokens/s", ">=", None, None),
        figure(f"{what}: rate with logprobs over without", share, "ratio", ">=", LOGPROBS, 1.0),
    ]


async def measure(url: str, shape: str, free_before: int | None) -> AsyncIterator[list[Figure]]:
    """All figures of a server, group by group."""
    limits = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=limits[0], timeout=limits[1]) as session:
        client = Client(session, url)
        infos = await client.infos()
        if free_before is not None:
            yield await handle_figures(client, shape, infos)
        yield await folder_figures(client, shape, infos)
        if free_before is not None:
            yield await sleep_figures(client, shape, free_before)
        if shape in ROLLOUTS:
            yield await rollout_figures(client, shape)


def figures(shape: str) -> Iterator[Figure]:
    """The figures of a shape; those of IPC and of sleep on a GPU alone."""
    on_gpu = torch.cuda.is_available()
    free_before = torch.cuda.mem_get_info()[0] if on_gpu else None
    flags = ("--gpu-memory-utilization", SHARES[shape]) if on_gpu and shape in SHARES else ()
    made_by = {
        "command": f"python -m benchmarks.record --parts rollouts:{shape}",
        "check": "checksums of the weights that were sent, tokens before and after the sleep",
    }
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_shape(shape, Path(folder) / "model"))
        with serving(model, *FLAGS, *flags) as url, asyncio.Runner() as runner:
            groups = measure(url, shape, free_before)

            async def next_group() -> list[Figure]:
                return await anext(groups, [])

            while group := runner.run(next_group()):
                for made in group:
                    yield made | made_by


def main() -> None:
    """Print the figures of a shape."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=[*SHAPES, TINY], default=SMALL)
    for made in figures(parser.parse_args().shape):
        report(made)


if __name__ == "__main__":
    main()
