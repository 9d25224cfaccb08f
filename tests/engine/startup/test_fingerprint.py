"""The fingerprint changes with whatever decides bits, and with nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import CacheConfig, EngineConfig, ModelConfig, SamplingConfig
from engine.speculative_config import SpeculativeConfig
from engine.startup import fingerprint as module
from engine.startup.fingerprint import Fingerprint, file_hash

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "one", b"weights", b"more of them")


def make(folder: Path, *files: bytes, **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"hidden_size": 8, **config}))
    for i, content in enumerate(files):
        (folder / f"model-{i}.safetensors").write_bytes(content)
    return folder


def of(folder: Path, model: dict[str, Any] | None = None, **given: Any) -> str:
    config = EngineConfig(model=ModelConfig(model=str(folder), **(model or {})), **given)
    return Fingerprint(config, CPU).result()


def test_it_is_of_the_weights_wherever_they_lie(folder: Path, tmp_path: Path) -> None:
    wanted = of(folder)
    assert len(wanted) == 16
    assert of(Path(shutil.copytree(folder, tmp_path / "copy"))) == wanted
    assert of(make(tmp_path / "named", b"more of them", b"weights")) == wanted
    assert of(make(tmp_path / "noted", b"weights", b"more of them", _name_or_path="x")) == wanted
    # The last byte counts: nothing is sampled.
    assert of(make(tmp_path / "other", b"weights", b"more of thez")) != wanted
    assert of(make(tmp_path / "wider", b"weights", b"more of them", rope_theta=2.0)) != wanted


def test_ids_that_end_texts_are_in_it_and_defaults_of_requests_are_not(folder: Path) -> None:
    wanted, path = of(folder), folder / "generation_config.json"
    path.write_text(json.dumps({"temperature": 0.5}))
    assert of(folder) == wanted
    path.write_text(json.dumps({"temperature": 0.5, "eos_token_id": 3}))
    assert of(folder) != wanted


def test_random_weights_are_those_of_the_config(folder: Path, tmp_path: Path) -> None:
    dummy = {"load_format": "dummy"}
    assert of(folder, dummy) == of(make(tmp_path / "none"), dummy) != of(folder)


def test_files_of_a_hub_s_cache_are_named_by_their_hashes(tmp_path: Path) -> None:
    blobs, name = tmp_path / "blobs", "ab" * 32
    blobs.mkdir()
    (blobs / name).write_bytes(b"never read")
    link = tmp_path / "model.safetensors"
    link.symlink_to(blobs / name)
    assert file_hash(link) == name
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert file_hash(plain) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize(
    "given",
    [
        {"cache": CacheConfig(block_size=32)},
        {"cache": CacheConfig(dtype="fp8")},
        {"tensor_parallel_size": 2},
        {"cuda_graphs": False},
        {"sampling": SamplingConfig(use_fp64_gumbel=True)},
        {"speculation": SpeculativeConfig(method="ngram", num_speculative_tokens=3)},
        {"model": {"dtype": "bfloat16"}},
        {"model": {"quantization": "fp8"}},
    ],
)
def test_settings_that_compute_are_in_it(given: dict[str, Any], folder: Path) -> None:
    assert of(folder, **given) != of(folder)


@pytest.mark.parametrize(
    "given",
    [
        {"log_level": "debug", "log_format": "json", "report_times": True, "step_timeout_s": 9.0},
        {"sampling": SamplingConfig(seed=4)},
        {"sampling": SamplingConfig(max_logprobs=-1)},
        {"model": {"device": "cpu"}},
    ],
)
def test_others_are_not(given: dict[str, Any], folder: Path) -> None:
    assert of(folder, **given) == of(folder)


def test_a_drafter_s_weights_count(folder: Path, tmp_path: Path) -> None:
    def with_drafter(drafter: Path) -> str:
        speculation = SpeculativeConfig(
            method="draft_model", model=str(drafter), num_speculative_tokens=2
        )
        return of(folder, speculation=speculation)

    first = with_drafter(make(tmp_path / "a", b"drafter"))
    assert first == with_drafter(make(tmp_path / "b", b"drafter"))
    assert first != with_drafter(make(tmp_path / "c", b"drafted"))


@pytest.mark.parametrize("part", ["device_class", "libraries", "sources"])
def test_device_libraries_and_sources_are_in_it(
    part: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = of(folder)
    monkeypatch.setattr(module, part, lambda *arguments: "another")
    assert of(folder) != before


def test_sources_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    before = module.sources()
    assert module.sources() == before
    monkeypatch.setattr(module, "PACKAGES", ("sampling",))
    assert module.sources() != before


def test_a_setting_counts_unless_it_is_named() -> None:
    plain = EngineConfig(model=ModelConfig(model="m"))
    names = set(plain.__struct_fields__)
    assert names >= module.WITHOUT_EFFECT
    assert set(module.settings(plain)) == names - module.WITHOUT_EFFECT
    assert set(ModelConfig.__struct_fields__) >= module.PLACES["model"]
