"""Updates of a server's weights, the pauses they make, its sleep, and rollouts with logprobs.

    python -m benchmarks.bench_rollouts --shape qwen3-0.6b

The server has random weights; those of the updates are random too. A trainer in a process of its
own shares them on the same GPU, one handle for each tensor, or one for a buffer of all. Streams run
beside every update: a pause is the time by which their gaps are longer than a step.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import aiohttp
import torch
from safetensors import safe_open

from benchmarks.bench_serving import serving
from benchmarks.figures import Figure, figure, report
from benchmarks.rollout_client import Client, Update, by_handles, prompt, timed
from benchmarks.shapes import SHAPES, TINY, write_shape
from benchmarks.shared_weights import Info, Trainer, write_files
from engine.contracts.checksums import checksum

SMALL, BIG = "qwen3-0.6b", "qwen3-8b"
FLAGS = (
    *("--load-format", "dummy", "--disable-uvicorn-access-log"),
    *("--enable-weight-updates", "--enable-sleep-mode", "--max-model-len", "8192"),
)
SHARES = {SMALL: "0.45", BIG: "0.35"}
"""Of the GPU's memory: trainers are on it too, and what an update keeps."""
FOLDER_S, IPC_S = {SMALL: 0.5, BIG: 6.0}, {SMALL: 0.05, BIG: 0.5}
PAUSE_MS, FREED, WAKE_S, LOGPROBS = 20.0, 0.95, {BIG: 3.0}, 0.97
NUM_UPDATES = 2
ROLLOUTS = {SMALL: (512, 1024), TINY: (8, 16)}
"""Requests and the tokens of each."""


def written(infos: list[Info], folder: Path) -> None:
    """Write a folder if there is none."""
    if not folder.exists():
        write_files(infos, folder)


def check(sums: dict[str, str], folder: Path) -> None:
    """Compare checksums of the served weights with those of a few in the folder."""
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    with safe_open(next(folder.iterdir()), framework="pt") as file:
        for name in itertools.islice(file.keys(), 8):
            if checksum(file.get_tensor(name).to(dtype)) != sums[name]:
                raise RuntimeError(f"weight {name} is not that of the folder")


async def folder_figures(
    client: Client, shape: str, infos: list[Info], folder: Path
) -> list[Figure]:
    """Updates from a folder, which is written if there is none."""
    written(infos, folder)

    async def update() -> None:
        await client.send("/update_weights", {"weight_dir": str(folder)})

    updates = [await timed(client, update) for _ in range(NUM_UPDATES)]
    check(await client.checksums(), folder)
    return figures_of(f"{shape}, weights from a folder", updates, FOLDER_S.get(shape))


async def handle_figures(
    client: Client, shape: str, infos: list[Info], trainer: Trainer
) -> list[Figure]:
    """Updates by handles of another process, of each tensor and of one buffer."""
    made, sums = list[Figure](), [await client.checksums()]
    for one in (True, False):
        updates = []
        for _ in range(NUM_UPDATES):
            raw = await asyncio.to_thread(trainer.handles, infos, one=one)
            update = partial(by_handles, client, infos, raw, one=one)
            updates.append(await timed(client, update))
        sums.append(await client.checksums())
        kind = "one handle" if one else f"{len(infos)} handles"
        made += figures_of(f"{shape}, weights by CUDA IPC, {kind}", updates, IPC_S.get(shape))
    trainer.end()
    if sums[1] != sums[2] or any(sums[0][name] == sums[1][name] for name in sums[0]):
        raise RuntimeError("weights are not the trainer's")
    return made


def figures_of(what: str, updates: list[Update], most: float | None) -> list[Figure]:
    """The figures of the fastest of some updates."""
    print(what, [tuple(round(1e3 * each, 1) for each in update) for update in updates], flush=True)
    best = min(updates)
    beyond, paused = round(1e3 * (best.paused - best.copying), 1), round(1e3 * best.paused, 1)
    return [
        figure(what, round(best.seconds, 4), "s", "<=", most, None),
        figure(f"{what}: streams pause", paused, "ms", "<=", None, None),
        figure(f"{what}: pause beyond the copy", beyond, "ms", "<=", PAUSE_MS, None),
    ]


class Memory:
    """The GPU's free memory, in bytes, by what the server does; after its end too."""

    def __init__(self) -> None:
        self.awake = self.asleep = 0

    @property
    def free(self) -> int:
        """What is free now."""
        return int(torch.cuda.mem_get_info()[0])

    def figure(self, shape: str) -> Figure:
        """The share that a sleep gave back, once the server has ended."""
        held, kept = self.free - self.awake, self.free - self.asleep
        print(f"{shape}: {held / 2**30:.2f} GiB awake, {kept / 2**30:.2f} asleep", flush=True)
        must = FREED if shape == SMALL else None
        what = f"{shape}, sleep: share of memory given back"
        return figure(what, round(1 - kept / held, 4), "share", ">=", must, 1.0)


async def sleep_figures(client: Client, shape: str, memory: Memory) -> list[Figure]:
    """How long a sleep and the waking take."""
    body = {"token_ids": prompt(0), "sampling_params": {"max_tokens": 8, "temperature": 0}}
    drawn = json.loads(await client.send("/inference/v1/generate", body))["choices"][0]
    memory.awake, started = memory.free, time.perf_counter()
    await client.send("/sleep?level=1")
    slept, memory.asleep = time.perf_counter() - started, memory.free
    started = time.perf_counter()
    await client.send("/wake_up")
    woke = time.perf_counter() - started
    again = json.loads(await client.send("/inference/v1/generate", body))["choices"][0]
    if again["token_ids"] != drawn["token_ids"]:
        raise RuntimeError("other tokens after the sleep")
    return [
        figure(f"{shape}, falling asleep", round(slept, 2), "s", "<=", None, None),
        figure(f"{shape}, waking", round(woke, 2), "s", "<=", WAKE_S.get(shape), None),
    ]


async def rollout_figures(client: Client, shape: str, length: int | None) -> list[Figure]:
    """Rollouts with the logprobs of their tokens beside those without, the best of two turns."""
    count, usual = ROLLOUTS[shape]
    length = length or usual
    await client.rollouts(count, length // 16, 0)
    rates: list[list[float]] = [[], []]
    for turn in range(2 * len(rates)):
        params = {"logprobs": 0} if turn % 2 else {}
        rates[turn % 2].append(await client.rollouts(count, length, 10_000 * (turn + 1), **params))
    plain, with_logprobs = map(max, rates)
    what, share = f"{shape}, {count} rollouts of {length:,} tokens", round(with_logprobs / plain, 4)
    return [
        figure(what, round(plain), "tokens/s", ">=", None, None),
        figure(f"{what}: rate with logprobs over without", share, "ratio", ">=", LOGPROBS, 1.0),
    ]


class Settings(NamedTuple):
    """What is measured.

    Attributes:
        weights: a folder of weights that are there already, or are to be kept. length: tokens of a
            rollout.
    """

    shape: str
    weights: Path | None = None
    length: int | None = None


async def measure(
    url: str, settings: Settings, folder: Path, trainer: Trainer | None, memory: Memory
) -> AsyncIterator[list[Figure]]:
    """The figures of a server, group by group; without a trainer those that need no GPU."""
    shape = settings.shape
    limits = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=limits[0], timeout=limits[1]) as session:
        client = Client(session, url)
        infos = await client.infos()
        if trainer is not None:
            yield await handle_figures(client, shape, infos, trainer)
            yield await sleep_figures(client, shape, memory)
        yield await folder_figures(client, shape, infos, folder)
        if shape in ROLLOUTS:
            yield await rollout_figures(client, shape, settings.length)


def figures(shape: str) -> Iterator[Figure]:
    """All figures of a shape; those of IPC and of sleep on a GPU alone."""
    yield from figures_by(Settings(shape))


def figures_by(settings: Settings) -> Iterator[Figure]:
    """All figures, as they are measured."""
    shape, on_gpu = settings.shape, torch.cuda.is_available()
    flags = ("--gpu-memory-utilization", SHARES[shape]) if on_gpu and shape in SHARES else ()
    made_by = {
        "command": f"python -m benchmarks.record --parts rollouts:{shape}",
        "check": "checksums of the weights that were sent, tokens before and after the sleep",
    }
    trainer, memory = Trainer() if on_gpu else None, Memory()
    with tempfile.TemporaryDirectory() as made:
        model = str(write_shape(shape, Path(made) / "model"))
        folder = settings.weights or Path(made) / "weights"
        with serving(model, *FLAGS, *flags) as url, asyncio.Runner() as runner:
            groups = measure(url, settings, folder, trainer, memory)

            async def next_group() -> list[Figure]:
                return await anext(groups, [])

            while group := runner.run(next_group()):
                yield from (each | made_by for each in group)
    if trainer is not None:
        yield memory.figure(shape) | made_by


def main() -> None:
    """Print the figures of a shape."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=[*SHAPES, TINY], default=SMALL)
    parser.add_argument("--weights", type=Path, help="a folder of weights, written if it is none")
    parser.add_argument("--length", type=int, help="tokens of a rollout")
    for each in figures_by(Settings(**vars(parser.parse_args()))):
        report(each)


if __name__ == "__main__":
    main()
