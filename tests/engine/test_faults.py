"""Faults of the device: those concerned are reported, and the engine goes on or ends, saying why.

The same tests run on a CPU with faults that are raised and on the GPU with real ones.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from demo import MODEL_FOLDER
from engine import parent as parent_module
from engine.client import EngineClient, EngineDeadError
from engine.config import CacheConfig, Device, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.messages.request import Request
from engine.messages.step_output import Finish
from engine.process import EXIT_FATAL, EXIT_HUNG
from engine.startup.build import build_engine
from sampling.params import SamplingParams
from tests.engine.faulty import FAULT
from tests.engine.tiny_models import write_model

STEP_TIMEOUT_S = 3.0
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
Start = Callable[[str, Device], Any]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    @asynccontextmanager
    async def started(kind: str, device: Device) -> AsyncIterator[EngineClient]:
        command = (sys.executable, "-m", "tests.engine.faulty", kind)
        monkeypatch.setattr(parent_module, "COMMAND", command)
        model = ModelConfig(model=str(MODEL_FOLDER), device=device, max_model_len=256)
        cache = CacheConfig(num_blocks=300)
        client = await EngineClient.start(
            EngineConfig(model=model, cache=cache, step_timeout_s=STEP_TIMEOUT_S)
        )
        try:
            yield client
        finally:
            await client.close()

    return started


def submit(client: EngineClient, first: int, max_tokens: int) -> Coroutine[Any, Any, Any]:
    """What becomes of a prompt: its tokens, how it ends, with what message."""
    request = Request(
        handle=client.new_handle(),
        prompt_token_ids=np.array([first, 6, 7], dtype=np.int32),
        params=SamplingParams(temperature=0.0),
        max_tokens=max_tokens,
    )
    submission = client.submit(request)

    async def read() -> tuple[list[int], Finish, str | None]:
        tokens: list[int] = []
        async for entries in submission:
            for entry in entries:
                tokens += entry.token_ids.tolist()
                finish, error = entry.finish, entry.error
        return tokens, finish, error

    return read()


@pytest.mark.parametrize("device", DEVICES)
async def test_a_step_without_memory_fails_and_the_next_does_not(
    start: Start, device: Device
) -> None:
    async with start("memory", device) as client:
        wanted = await submit(client, 5, 20)
        tokens, finish, error = await submit(client, FAULT, 20)
        assert (tokens, finish) == ([], Finish.ERROR)
        assert "memory" in (error or "")
        assert await submit(client, 5, 20) == wanted
        assert client.failure() is None
        assert client.stats is not None
        assert client.stats.failed_steps == 1
        assert client.stats.kv_blocks_used == 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [("device", EXIT_FATAL, "device-side assert"), ("hang", EXIT_HUNG, "a step took over 3 s")],
)
async def test_without_a_device_the_engine_ends_and_says_why(
    start: Start, device: Device, kind: str, code: int, words: str
) -> None:
    async with start(kind, device) as client:
        assert (await submit(client, 5, 20))[1] == Finish.LENGTH
        neighbour = asyncio.create_task(submit(client, 5, 200))
        async with asyncio.timeout(STEP_TIMEOUT_S + 30):
            for waiting in (submit(client, FAULT, 20), neighbour):
                with pytest.raises(EngineDeadError, match=f"status {code}.*{words}"):
                    await waiting
        assert words in (client.failure() or "")


NAN_TOKEN = 90


@pytest.fixture
def model_with_a_nan(tmp_path: Path) -> Path:
    model = write_model("qwen3", tmp_path)
    with torch.no_grad():
        model.get_input_embeddings().weight[NAN_TOKEN] = float("nan")
    model.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("device", "cuda_graphs"),
    [
        ("cpu", False),
        pytest.param("cuda", False, marks=pytest.mark.gpu),
        pytest.param("cuda", True, marks=pytest.mark.gpu),
    ],
)
def test_a_nan_row_fails_alone(model_with_a_nan: Path, device: Device, cuda_graphs: bool) -> None:
    """Real NaN, through every layer, beside rows that share its step and reuse its blocks."""
    config = EngineConfig(
        model=ModelConfig(
            model=str(model_with_a_nan), dtype="float32", device=device, max_model_len=128
        ),
        cache=CacheConfig(num_blocks=20),
        scheduler=SchedulerConfig(max_rows=4, max_step_tokens=64),
        cuda_graphs=cuda_graphs,
    )
    good = [[5, 6, 7], list(range(20, 60)), [9] * 17]
    bad = [*range(20, 50), NAN_TOKEN, 8]
    alone, _ = run(build_engine(config), good)
    engine = build_engine(config)
    for _ in range(2):  # the second time over blocks that held NaN
        tokens, finishes = run(engine, [good[0], bad, *good[1:]])
        assert finishes.pop(1) == Finish.NAN
        assert tokens == {0: alone[0], 2: alone[1], 3: alone[2]}
        assert set(finishes.values()) == {Finish.LENGTH}
    assert engine.stats().nan_rows == 2


def run(engine: Engine, prompts: list[list[int]]) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Tokens of each prompt, greedy without token 90, and how each ended."""
    params = SamplingParams(temperature=0.0, logit_bias={NAN_TOKEN: -100.0})
    for handle, prompt in enumerate(prompts):
        ids = np.array(prompt, dtype=np.int32)
        engine.submit(
            b"", Request(handle=handle, prompt_token_ids=ids, params=params, max_tokens=30)
        )
    tokens: dict[int, list[int]] = defaultdict(list)
    finishes: dict[int, int] = {}
    while engine.has_work:
        for _, output in engine.step():
            handles = np.repeat(output.handles, output.num_new)
            for handle, token in zip(handles.tolist(), output.token_ids.tolist(), strict=True):
                tokens[handle].append(token)
            finishes |= dict(zip(output.handles.tolist(), output.finish.tolist(), strict=True))
    engine.check()
    return tokens, finishes
