"""What is begun before weights are loaded, and who waits for it; modules are only named here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from msgspec import structs

from demo import EAGLE_FOLDER, MODEL_FOLDER
from engine.attention import flashinfer
from engine.attention.modules import Loading, Module
from engine.batch import RequestRows
from engine.config import EngineConfig, ModelConfig, SamplingConfig
from engine.contracts.attention import AttentionSpec
from engine.models.expected import expected_model
from engine.speculative_config import SpeculativeConfig
from engine.startup import kernels
from sampling import warm_up
from sampling.paths import flashinfer as sampler

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
CONFIG = EngineConfig(model=ModelConfig(model=str(MODEL_FOLDER), dtype="bfloat16"))
COUPLED = SpeculativeConfig(
    method="eagle",
    model=str(EAGLE_FOLDER),
    num_speculative_tokens=2,
    rejection_sample_method="coupled",
)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Module]:
    """Modules begun on a GPU of compute capability 9.0, as far as anybody looks."""
    modules: list[Module] = []

    def loading(module: Module) -> Loading:
        modules.append(module)
        return Loading(Future(), was_built=False)

    def wait(named: Iterable[Module], *, builds: bool) -> None:
        modules.extend(named if builds else ())

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(flashinfer, "is_installed", lambda: True)
    monkeypatch.setattr(kernels, "loading", loading)
    monkeypatch.setattr(kernels, "wait_for_modules", wait)
    monkeypatch.setattr(sampler, "begin_loading", lambda *args: None)
    return modules


def test_modules_are_begun_by_the_config_alone(begun: list[Module]) -> None:
    kernels.begin_loading(CONFIG, CUDA)
    [spec] = set(expected_model(CONFIG.model, CPU).attention_specs)
    assert begun == [Module.of(spec, torch.bfloat16, CUDA)]


def test_nothing_is_begun_on_a_cpu(begun: list[Module]) -> None:
    kernels.begin_loading(CONFIG, CPU)
    assert not begun


@pytest.mark.parametrize(
    ("changes", "waits"),
    [({}, False), ({"wait_for_kernels": True}, True), ({"speculation": COUPLED}, True)],
)
def test_who_promises_bits_waits(begun: list[Module], changes: dict[str, Any], waits: bool) -> None:
    spec = AttentionSpec(4, 2, 64, 0.125)
    model = cast(Any, SimpleNamespace(attention_specs=[spec], dtype=torch.bfloat16))
    config = structs.replace(CONFIG, **changes)
    kernels.wait_for_kernels(config, model, CPU)
    assert not begun
    kernels.wait_for_kernels(config, model, CUDA)
    assert begun == ([Module("fa3", torch.bfloat16, 64, False, False)] if waits else [])


def test_the_sampler_s_kernels_are_begun_for_the_rows_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[tuple[Any, ...]] = []

    def note(*args: Any, has_masks: bool) -> None:
        begun.append((*args, has_masks))

    def on_cpu(
        max_rows: int, max_len: int, block_size: int, device: torch.device, num_drafts: int
    ) -> RequestRows:
        return RequestRows(max_rows, max_len, block_size, CPU, num_drafts)

    monkeypatch.setattr(kernels, "kernels_run_on", lambda device: True)
    monkeypatch.setattr(warm_up, "compile_early", note)
    monkeypatch.setattr(kernels, "RequestRows", on_cpu)
    for name in ("_launch_attention", "launch_ends"):
        monkeypatch.setattr(kernels, name, lambda *args: None)
    kernels.begin_compiling(CONFIG, CUDA)
    short = structs.replace(CONFIG.model, max_model_len=64)
    kernels.begin_compiling(structs.replace(CONFIG, model=short), CUDA)
    context = expected_model(CONFIG.model, CPU).max_position
    widths = [RequestRows(2, max_len, 16, CPU).token_ids.shape[1] for max_len in (context + 1, 65)]
    assert begun == [(8192, width, CUDA, 20, False) for width in widths]
    assert kernels.begin_compiling(CONFIG, CPU) is None
    unlimited = structs.replace(CONFIG, sampling=SamplingConfig(max_logprobs=-1))
    kernels.begin_compiling(unlimited, CUDA)
    assert [each[3] for each in begun] == [20, 20, 128]  # longer lists are of prompts alone


def test_quantized_checkpoints_are_begun_too(tmp_path: Path) -> None:
    content = json.loads((MODEL_FOLDER / "config.json").read_text())
    content["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert expected_model(ModelConfig(model=str(tmp_path)), CPU).vocab_size == 8192
