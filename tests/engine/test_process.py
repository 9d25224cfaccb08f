"""The engine process: it answers, it cannot outlive its parent, its death is heard at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch
from msgspec import structs
from transformers import AutoModelForCausalLM

from demo import MODEL_FOLDER
from engine import parent as parent_module
from engine.client import EngineClient, EngineDeadError, Submission
from engine.config import AdaptersConfig, CacheConfig, ConfigError, EngineConfig, ModelConfig
from engine.contracts.adapters import AdapterSource
from engine.contracts.control import LoadAdapter, UnloadAdapter
from engine.messages.request import Request, ScoringRequest
from engine.messages.step_output import Finish
from sampling.params import SamplingParams
from tests.engine.adapters.peft import write_adapter

CONFIG = EngineConfig(
    model=ModelConfig(model=str(MODEL_FOLDER), device="cpu"), cache=CacheConfig(num_blocks=300)
)


@pytest_asyncio.fixture
async def client() -> AsyncIterator[EngineClient]:
    client = await EngineClient.start(CONFIG)
    yield client
    await client.close()


def submit(client: EngineClient, max_tokens: int = 8, **fields: Any) -> Submission:
    return client.submit(
        Request(
            handle=client.new_handle(),
            prompt_token_ids=np.array([5, 6, 7], dtype=np.int32),
            params=SamplingParams(temperature=0.0),
            max_tokens=max_tokens,
            **fields,
        )
    )


async def read(submission: Submission) -> tuple[list[int], Finish]:
    tokens, finish = [], Finish.RUNNING
    async for entries in submission:
        for entry in entries:
            tokens += entry.token_ids.tolist()
            finish = entry.finish
    return tokens, finish


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
async def test_an_engine_ends_with_the_name_of_the_rank_it_lost(
    sig: signal.Signals, device: Literal["cpu", "cuda"]
) -> None:
    """Two ranks: one request is answered, and one is under way when the other goes."""
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("two ranks have two GPUs")
    config = structs.replace(
        CONFIG,
        model=structs.replace(CONFIG.model, device=device),
        tensor_parallel_size=2,
        step_timeout_s=40.0,  # three quarters of it are more than the silence of a stopped rank
    )
    client = await EngineClient.start(config)
    (rank,) = psutil.Process(client.pid).children()
    try:
        rank.send_signal(signal.SIGTERM)
        assert len((await read(submit(client)))[0]) == 8, "ranks leave SIGTERM to the server"
        submission = submit(client, max_tokens=1500)
        await submission.__anext__()
        rank.send_signal(sig)
        with pytest.raises(EngineDeadError, match=r"rank 1 (ended \(status -9\)|has )"):
            await asyncio.wait_for(read(submission), 60.0)
    finally:
        await client.close()
    rank.wait(30.0)  # it ends with its engine, stopped or not


@torch.inference_mode()
def greedy(model: Any) -> list[int]:
    """What transformers draws for `submit`."""
    ids = [5, 6, 7]
    for _ in range(8):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[3:]


async def test_two_ranks_load_adapters_and_draw_with_them(tmp_path: Path) -> None:
    """Processes that meet by gloo, each with its parts of A and B."""
    base = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER).float().eval()
    wanted = {"": greedy(base)}
    for seed, name in enumerate(("one", "two")):
        merged = write_adapter(base, tmp_path / name, seed, rank=4, lora_alpha=16)
        wanted[name] = greedy(merged)
    assert len({str(tokens) for tokens in wanted.values()}) == 3
    adapters = AdaptersConfig(max_rank=4, modules=(("one", str(tmp_path / "one")),))
    client = await EngineClient.start(
        structs.replace(CONFIG, adapters=adapters, tensor_parallel_size=2)
    )

    async def load(name: str, folder: str) -> None:
        source = AdapterSource(str(tmp_path / folder))
        await client.control(LoadAdapter(name=name, source=source, replaces=True))

    try:
        await load("two", "two")
        asked = {name: submit(client, adapter=name) for name in wanted}
        assert {name: (await read(each))[0] for name, each in asked.items()} == wanted
        await client.control(UnloadAdapter(name="one"))
        await load("two", "one")
        assert (await read(submit(client, adapter="two")))[0] == wanted["one"]
    finally:
        await client.close()


async def test_an_engine_ends_with_the_name_of_a_rank_that_is_stopped_while_it_starts() -> None:
    """Rank 0 waits for it at the meeting. The test takes the ten seconds of the silence."""
    starting = asyncio.create_task(
        EngineClient.start(structs.replace(CONFIG, tensor_parallel_size=2))
    )
    try:
        rank = await asyncio.wait_for(_first_rank(), 60.0)
        rank.send_signal(signal.SIGSTOP)
        with pytest.raises(ConfigError, match=r"^rank 1 has been silent for \d+ s$"):
            await asyncio.wait_for(starting, 60.0)
    finally:
        starting.cancel()
    rank.wait(30.0)  # it ends with its engine


async def _first_rank() -> psutil.Process:
    """The process of a rank that this one's engine has just started."""
    while True:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "engine.startup.rank" in " ".join(process.cmdline()):
                    return process
        await asyncio.sleep(0.05)


async def test_answers_aborts_and_closes(client: EngineClient) -> None:
    streamed, whole = await asyncio.gather(
        read(submit(client)), read(submit(client, emit_interval=16))
    )
    assert streamed == whole
    assert len(whole[0]) == 8
    submission = submit(client, max_tokens=1500)
    await submission.__anext__()
    client.abort(submission.handle)
    assert (await read(submission))[1] == Finish.ABORT
    assert client.stats is not None
    assert client.stats.kv_blocks_used == 0
    assert client.failure() is None
    os.kill(client.pid, signal.SIGTERM)
    assert len((await read(submit(client)))[0]) == 8, "the engine leaves SIGTERM to the server"


async def test_gauges_move_while_nobody_is_answered(client: EngineClient) -> None:
    submission = client.score(
        ScoringRequest(
            handle=client.new_handle(),
            query_token_ids=np.arange(5, 105, dtype=np.int32),
            item_token_ids=np.tile(np.arange(5, 55, dtype=np.int32), 1000),
            item_lens=np.full(1000, 50, dtype=np.int32),
            num_read=np.ones(1000, dtype=np.int32),
            id_lists=np.array([[7, 8]], dtype=np.int32),
        )
    )
    for _ in range(1500):
        if client.stats is not None and client.stats.num_running:
            break
        await asyncio.sleep(0.02)
    assert not submission.finished
    assert client.stats is not None
    assert client.stats.num_running == 1
    assert client.stats.kv_blocks_used > 0


async def test_killed_engine_is_heard_at_once(client: EngineClient) -> None:
    submission = submit(client, max_tokens=1500)
    await submission.__anext__()
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="killed"):  # not: silent for 10 s
        await asyncio.wait_for(read(submission), 30)
    assert client.failure() is not None
    with pytest.raises(EngineDeadError):
        submit(client)


async def test_a_stopped_engine_counts_as_failed(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent_module, "SILENCE_S", 1.5)
    os.kill(client.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(2.0)
        assert "silent" in (client.failure() or "")
    finally:
        os.kill(client.pid, signal.SIGCONT)
    for _ in range(1500):
        if client.failure() is None:
            break
        await asyncio.sleep(0.02)
    assert client.failure() is None


async def test_startup_errors_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        await EngineClient.start(EngineConfig(model=ModelConfig(model=str(tmp_path))))
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_engine_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    """Nor does it leave the folder that the parent made for the socket."""
    program = (
        "import asyncio, tests.engine.test_process as t\n"
        "async def main():\n"
        "    client = await t.EngineClient.start(t.CONFIG)\n"
        "    print(client.pid, flush=True)\n"
        "    await t.read(t.submit(client, max_tokens=100000))\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    engine = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    engine.wait(timeout=30)
    assert not list(tmp_path.glob("tailrace-*"))
