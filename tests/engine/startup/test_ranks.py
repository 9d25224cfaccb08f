"""What an engine of several ranks cannot do is refused before any is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from demo import MODEL_FOLDER
from engine.config import ConfigError, EngineConfig, ModelConfig, SamplingConfig
from engine.errors import ModelError
from engine.parallel.messages import RankTest
from engine.startup import ranks
from engine.startup.ranks import start_ranks, visible_gpus

CONFIG = EngineConfig(
    model=ModelConfig(model=str(MODEL_FOLDER), device="cpu"), tensor_parallel_size=2
)


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        raise AssertionError("ranks were started")

    monkeypatch.setattr(ranks, "RankProcesses", start)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sampling": SamplingConfig(flashinfer="always")}, "FLASHINFER_SAMPLER=1 asks for it"),
    ],
)
def test_settings_that_ranks_do_not_serve_are_refused(fields: dict[str, Any], message: str) -> None:
    config = structs.replace(CONFIG, **fields)
    with pytest.raises(ConfigError, match=f"^--tensor-parallel-size 2: .*{message}"):
        start_ranks(config, torch.device("cpu"), print)


def test_fewer_gpus_than_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"-size 2 needs 2 GPUs, and torch sees 1; give at most"):
        start_ranks(CONFIG, torch.device("cuda"), print)


@pytest.mark.parametrize(
    ("visible", "wanted"),
    [(None, ("0", "1")), ("3, 1,2", ("3", "1")), ("GPU-a,GPU-b", ("GPU-a", "GPU-b"))],
)
def test_ranks_have_the_first_gpus(
    visible: str | None, wanted: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus(2) == wanted


@pytest.mark.parametrize("size", [0, 3, 16])
def test_other_numbers_of_ranks_are_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"must be 1, 2, 4 or 8, got {size}"):
        structs.replace(CONFIG, tensor_parallel_size=size)


def test_a_self_test_without_a_model_asks_for_none(tmp_path: Path) -> None:
    absent = structs.replace(CONFIG, model=ModelConfig(model=str(tmp_path), device="cpu"))
    for with_model, error in ((False, AssertionError), (True, ModelError)):
        with pytest.raises(error):
            start_ranks(absent, torch.device("cpu"), print, RankTest(True, 1, with_model, []))


def test_what_is_fine_is_started() -> None:
    with pytest.raises(AssertionError, match="ranks were started"):
        start_ranks(CONFIG, torch.device("cpu"), print)
