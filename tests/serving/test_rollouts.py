"""A server whose weights are updated while it runs: as a fresh one, under load, and refusals."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from demo import MODEL_FOLDER
from tests.serving.process import Server, free_port, serve
from tests.serving.rollouts import (
    PROMPT,
    done,
    generated,
    numbers,
    post,
    scored,
    update,
)

ONE = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 1}}


@pytest.fixture(scope="module")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with noise on every weight."""
    folder = tmp_path_factory.mktemp("weights") / "model"
    copytree(MODEL_FOLDER, folder)
    torch.manual_seed(0)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        noise = 0.2 * torch.randn_like(tensor.float()) * tensor.float().std().nan_to_num()
        tensors[name] = (tensor.float() + noise).to(tensor.dtype)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(
        "--enable-weight-updates", "--enable-sleep-mode", "--num-gpu-blocks-override", "600"
    ) as made:
        yield made


def test_an_updated_server_gives_what_a_fresh_one_gives(
    server: Server, other_weights: Path
) -> None:
    """Seeded and greedy tokens, logprobs and scores, bit for bit; and back again."""
    with serve("--model", str(other_weights)) as fresh:
        wanted = [numbers(generated(fresh)), numbers(generated(fresh, temperature=0))]
        wanted.append(scored(fresh))
    before = numbers(generated(server)), scored(server)
    fingerprint = done(server, "/inference/v1/generate", ONE)
    update(server, other_weights, "other")
    found = [numbers(generated(server)), numbers(generated(server, temperature=0))]
    found.append(scored(server))
    assert found == wanted
    assert before[0] != wanted[0]
    again = done(server, "/inference/v1/generate", ONE)
    assert again["system_fingerprint"] != fingerprint["system_fingerprint"]
    update(server, MODEL_FOLDER, "own")
    assert (numbers(generated(server)), scored(server)) == before
    done(server, "/sleep", mode="keep")
    assert post(server, "/generate", {"text": "x"}).status_code == 503
    done(server, "/wake_up", tags="weights")
    done(server, "/wake_up", tags="kv_cache")
    assert numbers(generated(server)) == before[0]


def test_many_updates_under_load_mix_no_weights(server: Server, other_weights: Path) -> None:
    """A reply that one version drew is that version's; what two drew says so; none is lost."""
    folders = {"even": MODEL_FOLDER, "odd": other_weights}
    reference = {}
    for name, folder in folders.items():
        update(server, folder, name)
        reference[name] = [choice["token_ids"] for choice in generated(server)]
    assert reference["even"] != reference["odd"]
    stop, replies, errors = threading.Event(), [], []

    def load() -> None:
        while not stop.is_set():
            try:
                replies.append(generated(server, shares=True))
            except AssertionError as error:
                errors.append(error)

    threads = [threading.Thread(target=load) for _ in range(6)]
    for thread in threads:
        thread.start()
    for count in range(20):
        name = list(folders)[count % 2]
        if count % 3 == 0:
            done(server, "/pause", mode="keep", clear_cache=count % 2 == 0)
        update(server, folders[name], name)
        if count % 3 == 0:
            done(server, "/resume")
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    mixed = 0
    for choices in replies:
        for index, choice in enumerate(choices):
            spans = choice["weight_versions"]
            assert [span["start"] for span in spans[1:]] == [span["end"] for span in spans[:-1]]
            assert (spans[0]["start"], spans[-1]["end"]) == (0, len(choice["token_ids"]))
            mixed += len(spans) > 1
            if len(spans) == 1:
                assert choice["token_ids"] == reference[spans[0]["version"]][index]
    assert len(replies) >= 6


def test_prime_rl_broadcasts_what_is_on_no_disk(server: Server, other_weights: Path) -> None:
    """Its trainer by gloo, its orchestrator's requests: the weights are those of the trainer."""
    update(server, other_weights, "other")
    wanted = done(server, "/weight_checker", {"action": "checksum"})["checksums"]
    update(server, MODEL_FOLDER, "own")
    port = free_port()
    program = [sys.executable, "-m", "tests.engine.weights.trainer"]
    arguments = ["127.0.0.1", str(port), str(other_weights), "prime-rl", "described"]
    trainer = subprocess.Popen([*program, *arguments], cwd=Path(__file__).parents[2])
    try:
        group = {"host": "127.0.0.1", "port": port, "rank_offset": 0, "timeout": 60}
        done(server, "/init_broadcaster", group | {"inference_world_size": 1})
        done(server, "/pause", mode="keep", clear_cache="false")
        done(server, "/update_weights", {"weight_dir": "/weights/step_4"})
        done(server, "/resume")
        assert trainer.wait(60) == 0
    finally:
        trainer.kill()
    compared = done(server, "/weight_checker", {"action": "compare", "baseline": wanted})
    assert compared["match"]
    update(server, MODEL_FOLDER, "own")  # whose files count, though there is a group


def test_skyrl_sleeps_under_a_request(server: Server) -> None:
    """What is kept goes on with the weights of then; the reply has tokens of both versions."""

    def call(method: str, **arguments: Any) -> None:
        done(server, "/collective_rpc", {"method": method, "kwargs": arguments})

    before, replies = numbers(generated(server)), list[Any]()
    params = {"max_tokens": 400, "ignore_eos": True, "logprobs": 0}
    body = {"token_ids": PROMPT, "sampling_params": params, "request_id": "kept"}
    run = threading.Thread(target=lambda: replies.append(done(server, "/skyrl/v1/generate", body)))
    run.start()
    while not any(v for name, v in server.metrics().items() if "num_requests_running" in name):
        assert run.is_alive()
    done(server, "/pause", mode="keep", clear_cache="false")
    call("skyrl_sleep_for_weight_sync", offload_kv=True)
    assert server.get("/is_sleeping").json()["asleep"] == ["weights", "kv_cache"]
    call("skyrl_wake_for_weight_sync", tags=["weights"])
    call("skyrl_start_weight_update", is_checkpoint_format=True)
    done(server, "/update_weights", {"update_info": {"path": str(MODEL_FOLDER)}})
    call("skyrl_finish_weight_update")
    call("skyrl_wake_for_weight_sync", tags=["kv_cache"])
    done(server, "/reset_prefix_cache", {"reset_running_requests": True})
    done(server, "/resume")
    run.join()
    (choice,) = replies[0]["choices"]
    spans = choice["weight_versions"]
    assert [span["end"] for span in spans][-1] == len(choice["token_ids"]) == 400
    assert len(spans) == 2
    assert numbers(generated(server)) == before
    done(server, "/update_weight_version", {"new_version": "own"})


def test_a_pause_outlasts_a_sleep_that_deepens(server: Server) -> None:
    before = numbers(generated(server))
    done(server, "/pause", mode="keep")
    for level in (1, 2):
        assert done(server, "/sleep", level=level, mode="keep")["level"] == level
    assert done(server, "/resume")["status"] == "asleep"
    done(server, "/pause", mode="keep", new_requests="refuse")
    done(server, "/wake_up")
    assert done(server, "/resume")["status"] == "no_weights"
    assert post(server, "/generate", {"text": "x"}).json()["error"]["code"] == "no_weights"
    update(server, MODEL_FOLDER, "own")
    assert numbers(generated(server)) == before


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/finish_weight_update", {}, "no_update"),
        ("/resume", None, "not_paused"),
        ("/update_weights", {"weight_dir": "/no/such/folder"}, "bad_source"),
        (
            "/init_weight_transfer_engine",
            {
                "init_info": {
                    "master_address": "127.0.0.1",
                    "master_port": free_port(),
                    "world_size": 2,
                    "timeout_s": 1.0,
                }
            },
            "group_timeout",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(server: Server, path: str, body: Any, code: str) -> None:
    before = numbers(generated(server))
    reply = post(server, path, body)
    assert reply.status_code in (400, 409), reply.text
    assert reply.json()["error"]["code"] == code
    assert numbers(generated(server)) == before


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"name": "model.nothing.weight"}, "unknown_weight"),
        ({"shape": [128, 2]}, "wrong_shape"),
        ({"dtype": "int32"}, "wrong_dtype"),
        ({"data": "AACAfwAAgH8AAIB/" * 85 + "AACAfw=="}, "not_finite"),
    ],
)
def test_bad_tensors_leave_the_old_weights(
    server: Server, change: dict[str, Any], code: str
) -> None:
    before = numbers(generated(server))
    tensor = {
        "name": "model.norm.weight",
        "dtype": "float32",
        "shape": [256],
        "data": "AACAPwAAgD8AAIA/" * 85 + "AACAPw==",
    }
    done(server, "/start_weight_update", {"check": True})
    assert post(server, "/start_weight_update").json()["error"]["code"] == "update_in_progress"
    reply = post(server, "/update_weights", {"update_info": {"tensors": [tensor | change]}})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, code), reply.text
    assert post(server, "/finish_weight_update").json()["error"]["code"] == "no_update"
    assert numbers(generated(server)) == before


def test_an_update_in_the_middle_of_another_is_refused(server: Server, other_weights: Path) -> None:
    """Which goes on: its trainer does not know of the intruder."""
    before = numbers(generated(server))
    done(server, "/start_weight_update")
    reply = post(server, "/update_weights_from_disk", {"model_path": str(other_weights)})
    assert (reply.status_code, reply.json()["success"]) == (400, False)
    assert "in the middle of another" in reply.json()["message"]
    done(server, "/update_weights", {"update_info": {"path": str(MODEL_FOLDER)}})
    done(server, "/finish_weight_update", {"weight_version": "own"})
    assert numbers(generated(server)) == before
    done(server, "/begin_weight_update")
    assert done(server, "/update_weights_from_disk", {"model_path": str(other_weights)})["success"]
    assert numbers(generated(server)) == before
    done(server, "/end_weight_update")
    assert numbers(generated(server)) != before
    update(server, MODEL_FOLDER, "own")


def test_a_version_does_not_go_back(server: Server, other_weights: Path) -> None:
    """Past a name as little; an update whose version is refused is finished with another."""
    update(server, MODEL_FOLDER, "1200")
    update(server, MODEL_FOLDER, "own")
    before = numbers(generated(server))
    past = {"weight_version": "1199"}
    folder = {"update_info": {"path": str(other_weights)}}
    done(server, "/start_weight_update")
    done(server, "/update_weights", folder)
    for path, body in (
        ("/update_weight_version", {"new_version": "1199"}),
        ("/finish_weight_update", past),
    ):
        reply = post(server, path, body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "version_backwards")
        assert numbers(generated(server)) == before
    done(server, "/finish_weight_update", {"weight_version": "1200"})
    assert numbers(generated(server)) != before
    reply = post(server, "/update_weights", past | {"weight_dir": str(MODEL_FOLDER)})
    assert reply.json()["error"]["code"] == "version_backwards"
    update(server, MODEL_FOLDER, "own")
    assert numbers(generated(server)) == before


def test_the_tutorial_trains(server: Server, tmp_path: Path) -> None:
    """One small step; its ratios are those of float32 on both sides."""
    command = [sys.executable, str(Path(__file__).parents[2] / "examples" / "grpo.py")]
    sizes = ["--steps", "1", "--questions", "2", "--group", "4", "--held-out", "2"]
    run = subprocess.run(
        [*command, "--base-url", server.url, *sizes], capture_output=True, text=True, timeout=240
    )
    assert run.returncode == 0, run.stderr
    (line,) = [each for each in run.stdout.splitlines() if each.startswith("step 1")]
    off = float(line.split("mean |ratio - 1| ")[1].split(",")[0])
    assert 0 < off < 1e-4
    assert json.loads(httpx.get(f"{server.url}/weight_info").text)["weight_version"] == "step 1"
