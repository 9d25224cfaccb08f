"""TRL's own client and trainer, unmodified, over a server whose weights they update.

What needs a GPU is replaced: NCCL by gloo, in the stand-in for the trainer's side of vLLM. All
requests, their order and what is read of replies are TRL's.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from demo import MODEL_FOLDER
from tests.clients import stand_in
from tests.clients.environments import python_with
from tests.serving.process import Server, free_port, serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

STAND_IN = Path(stand_in.__file__).parent
PROGRAM = STAND_IN.parent / "programs" / "trl_calls.py"
LOGPROB_ERROR = 1e-4
"""What float32 logprobs of server and trainer may differ by, whose sums have other orders."""

Run = Callable[[str], Any]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    flags = "--enable-weight-updates", "--logprobs-mode", "processed_logprobs"
    with serve(*flags, "--max-logprobs", "-1", "--seed", "1") as server:
        yield server


@pytest.fixture(scope="module")
def run(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs the program in an environment with TRL and the stand-in, as an installed package."""
    python = python_with("trl==1.16.0", "requests", shares_libraries=True)
    folder = tmp_path_factory.mktemp("installed")
    info = folder / "vllm-0.30.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.30.0\n")
    (info / "top_level.txt").write_text("vllm\n")
    paths = {"PYTHONPATH": f"{STAND_IN}:{folder}", "HF_HUB_OFFLINE": "1"}

    def run(what: str) -> Any:
        arguments = [what, server.url, str(MODEL_FOLDER), str(free_port())]
        done = subprocess.run(
            [str(python), str(PROGRAM), *arguments],
            env={**os.environ, **paths},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_the_client(server: Server, run: Run) -> None:
    """Its calls, and an update by whole models and tensor by tensor."""
    found = run("calls")
    assert (found["world_size"], found["info"]["weight_transfer_config"]["backend"]) == (1, "nccl")
    before, after = found["before"], found["after"]
    assert before["prompt_ids"] == [[40, 41, 42], [50, 51]]
    assert [len(ids) for ids in before["completion_ids"]] == [4] * 4
    for ids, known in zip(before["completion_ids"], before["logprob_token_ids"], strict=True):
        assert [[token_id] for token_id in ids] == known
    assert before["logprobs"] == found["restored"]["logprobs"] != after["logprobs"]
    assert len(found["chat"]["completion_ids"][0]) <= 4
    first, second = found["teacher"]["logprobs"]
    assert [len(first), len(second)] == [2, 2]
    assert all(len(position) == 5 for position in first + second)
    info = server.get("/weight_info").json()
    assert info["num_updates"] == 2


def test_the_trainer(server: Server, run: Run) -> None:
    """Two steps of GRPO whose rollouts the server draws: its logprobs are the trainer's."""
    before = server.get("/weight_info").json()["num_updates"]
    steps = run("train")
    assert len(steps) == 2
    for step in steps:
        assert step["sampling/sampling_logp_difference/max"] < LOGPROB_ERROR
        assert abs(step["sampling/importance_sampling_ratio/mean"] - 1) < LOGPROB_ERROR
    assert server.get("/weight_info").json()["num_updates"] > before
