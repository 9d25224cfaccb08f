"""A thousand updates under 64 streams: no number of other weights, no request lost, flat memory.

Numbers do not depend on the batch here, so every reply is compared to the last bit with what the
version that it names gives alone. Keys of other weights, found by a stale prefix, would show.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.serving.process import Server, serve
from tests.serving.tiny_folders import write_with_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

NUM_UPDATES, NUM_STREAMS, NUM_SCORING = 1000, 64, 4
NUM_WEIGHTS = 3
COMMON = list(range(40, 90))
PROMPTS = [[*COMMON[: 16 * (1 + i % 3)], 200 + i, 300 + i] for i in range(12)]
"""Prompts that share one to three blocks, so that prefixes of before are there to be found."""
MAX_TOKENS = 6
PAUSES: tuple[dict[str, str] | None, ...] = (
    None,
    {"mode": "keep", "clear_cache": "false"},
    {"mode": "keep", "clear_cache": "true"},
    {"mode": "wait", "new_requests": "queue"},
)
"""How the engine is paused for one update after another; None: it is not."""
GROWTH_BYTES = 4096
"""Of a process for each update, at most. Half a hash of a block kept would show."""

Numbers = list[tuple[int, float]]


class Reply(NamedTuple):
    """What a request got: ids with logprobs, and versions as (version, start, end)."""

    numbers: Numbers
    spans: list[tuple[int, int, int]]


def write_deltas(model: Path, folder: Path) -> list[Path]:
    """Folders with other weights of the first layer each."""
    stored, folders = load_file(model / "model.safetensors"), []
    for index in range(NUM_WEIGHTS):
        generator = torch.Generator().manual_seed(index)
        tensors = {
            name: tensor + 0.1 * tensor.std() * torch.randn(tensor.shape, generator=generator)
            for name, tensor in stored.items()
            if name.startswith("model.layers.0.") and tensor.dim() == 2
        }
        folders.append(folder / str(index))
        folders[-1].mkdir()
        save_file(tensors, folders[-1] / "model.safetensors")
    return folders


class Client:
    """Requests over one session; every answer must be a 200."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def post(self, path: str, body: Any = None, **query: str) -> Any:
        async with self._session.post(self._url + path, json=body, params=query) as reply:
            text = await reply.text()
        assert reply.status == 200, text
        return json.loads(text)

    async def generate(self, index: int, *, stream: bool) -> Reply:
        """Ask for a prompt's continuation, whose seed is its own."""
        params = {"max_tokens": MAX_TOKENS, "seed": index, "logprobs": 0, "ignore_eos": True}
        body = {"token_ids": PROMPTS[index], "sampling_params": params}
        path = "/inference/v1/generate"
        if not stream:
            return _reply([await self.post(path, body)])
        url = self._url + path
        async with self._session.post(url, json=body | {"stream": True}) as reply:
            assert reply.status == 200
            lines = [line async for line in reply.content if line.startswith(b"data: {")]
        return _reply([json.loads(line.removeprefix(b"data: ")) for line in lines])

    async def score(self) -> list[float]:
        body = {"query": COMMON, "items": [[5], [6]], "label_token_ids": [7, 8]}
        reply = await self.post("/generative_scoring", body)
        return [row["score"] for row in reply["data"]]


def _reply(chunks: list[Any]) -> Reply:
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert choices[-1]["finish_reason"] == "length", "it was neither lost nor cut"
    content = [entry for choice in choices for entry in choice["logprobs"]["content"]]
    numbers = [(entry["token_id"], entry["logprob"]) for entry in content]
    spans = choices[-1]["weight_versions"]
    return Reply(numbers, [(int(s["version"]), s["start"], s["end"]) for s in spans])


class Run:
    """The trainer and its streams.

    Attributes:
        version: of the weights at least, by what the trainer knows.
        counts: replies by the number of versions that drew them, and scores.
    """

    def __init__(self, client: Client, folders: list[Path]) -> None:
        self._client, self._folders = client, folders
        self.version, self._stopped = 0, False
        self._numbers: list[list[Numbers]] = []
        self._scores: list[list[float]] = []
        self.counts = {"plain": 0, "mixed": 0, "scored": 0}

    async def update(self, version: int) -> None:
        body = {"weight_dir": str(self._folders[version % NUM_WEIGHTS])}
        await self._client.post("/update_weights", body | {"weight_version": str(version)})
        self.version = version

    async def note_references(self) -> None:
        """Note what each weights give of each prompt alone; the last are those of version 0."""
        for index in (1, 2, 3):
            await self.update(index)
            own = [await self._client.generate(i, stream=False) for i in range(len(PROMPTS))]
            self._numbers.append([reply.numbers for reply in own])
            self._scores.append(await self._client.score())
        self._numbers.insert(0, self._numbers.pop())  # in the order of version % NUM_WEIGHTS
        self._scores.insert(0, self._scores.pop())
        for kind in (self._numbers, self._scores):
            assert all(one != other for one, other in itertools.combinations(kind, 2))

    async def stream(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self._stopped:
            index, earliest = rng.randrange(len(PROMPTS)), self.version
            reply = await self._client.generate(index, stream=rng.random() < 0.5)
            self._check(index, earliest, reply)

    def _check(self, index: int, earliest: int, reply: Reply) -> None:
        numbers, spans = reply
        versions = [version for version, _, _ in spans]
        assert versions == sorted(set(versions))
        assert earliest <= versions[0] <= versions[-1] <= self.version + 1
        ends = [0, *(end for _, _, end in spans)]
        assert [start for _, start, _ in spans] == ends[:-1]
        assert ends[-1] == len(numbers) == MAX_TOKENS
        # What the first version drew it drew after its own keys alone.
        wanted = self._numbers[versions[0] % NUM_WEIGHTS][index]
        assert numbers[: ends[1]] == wanted[: ends[1]], f"not what version {versions[0]} draws"
        self.counts["plain" if len(spans) == 1 else "mixed"] += 1

    async def score(self) -> None:
        while not self._stopped:
            earliest = self.version
            scores = await self._client.score()
            versions = range(earliest, self.version + 2)
            assert scores in [self._scores[version % NUM_WEIGHTS] for version in versions]
            self.counts["scored"] += 1

    async def train(self, server: Server, sizes: list[dict[str, int]]) -> None:
        first = self.version + 1
        try:
            for version in range(first, first + NUM_UPDATES):
                pause = PAUSES[version % len(PAUSES)]
                if pause is not None:
                    await self._client.post("/pause", **pause)
                await self.update(version)
                if pause is not None:
                    await self._client.post("/resume")
                if version % 100 == 0:
                    sizes.append(private_bytes(server))
        finally:
            self._stopped = True


def private_bytes(server: Server) -> dict[str, int]:
    processes = {"server": psutil.Process(server.process.pid), "engine": server.engine}
    return {name: process.memory_full_info().uss for name, process in processes.items()}


async def run(server: Server, folders: list[Path]) -> tuple[Run, list[dict[str, int]]]:
    sizes: list[dict[str, int]] = []
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        trainer = Run(Client(session, server.url), folders)
        await trainer.note_references()
        async with asyncio.TaskGroup() as tasks:
            for seed in range(NUM_STREAMS - NUM_SCORING):
                tasks.create_task(trainer.stream(seed))
            for _ in range(NUM_SCORING):
                tasks.create_task(trainer.score())
            tasks.create_task(trainer.train(server, sizes))
    return trainer, sizes


def test_no_reply_has_numbers_of_other_weights(tmp_path: Path) -> None:
    write_with_tokenizer("qwen3", tmp_path / "model")
    deltas = write_deltas(tmp_path / "model", tmp_path)
    flags = "--enable-weight-updates", "--batch-invariant", "--num-gpu-blocks-override", "800"
    with serve("--model", str(tmp_path / "model"), *flags) as server:
        trainer, sizes = asyncio.run(run(server, deltas))
        metrics = server.metrics()
        state = server.get("/weight_info").json()
    print(trainer.counts, sizes)
    assert state["weight_version"] == str(trainer.version)
    assert state["num_updates"] == trainer.version == NUM_WEIGHTS + NUM_UPDATES
    assert all(count > NUM_UPDATES // 10 for count in trainer.counts.values())
    hits = sum(v for name, v in metrics.items() if "prefix_cache_hits_total" in name)
    assert hits > 0, "there were prefixes to be found"
    for name in ("server", "engine"):
        grown = np.diff([size[name] for size in sizes[2:]])
        assert np.median(grown) < 100 * GROWTH_BYTES, f"{name} grew: {sizes}"
