"""The part of `tailrace verify` that compares a model with its reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import CacheConfig, CacheDtype, EngineConfig, ModelConfig, StructuredConfig
from engine.contracts.attention import AttentionInputs
from engine.kernels.fp8 import Fp8Rows, quantize_rows
from engine.models.formats import fp8, reader
from engine.startup.verify import model_check
from engine.startup.verify.model_check import model_checks, model_reference, served_logits
from sampling.device.ranks import LoneRank, RankExchange
from sampling.selftest.checks import Result
from tests.engine.models.families.shard_models import MODELS as WIDE_MODELS
from tests.engine.models.formats.packers import Tensors, gptq, round_weight, write_quantized
from tests.engine.models.serving import LENGTH, write_tiny
from tests.engine.models.small_models import MODELS
from tests.sampling.ranks import on_ranks

DEMO = Path(__file__).resolve().parents[4] / "demo" / "model"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}


def config_of(folder: Path, kv: CacheDtype = "auto", **model: Any) -> EngineConfig:
    limits: dict[str, Any] = {} if folder == DEMO else {"max_model_len": LENGTH}
    return EngineConfig(
        model=ModelConfig(model=str(folder), device="cpu", **limits, **model),
        cache=CacheConfig(dtype=kv),
        structured=StructuredConfig(tokenizer=str(folder)) if folder == DEMO else None,
    )


def checked(folder: Path, kv: CacheDtype = "auto", **model: Any) -> list[Result]:
    """The rows of mean KL and of the largest gap."""
    config = config_of(folder, kv, **model)
    results = list(model_checks(config, model_reference(config), LoneRank()))
    assert [result.check for result in results] == ["logits: mean KL", "logits: largest gap"]
    return results


def nats(result: Result) -> float:
    return float(result.statistic.removesuffix(" nats"))


def assert_same(kl: Result, gap: Result, path: str) -> None:
    """Assert that what was computed by `path` is what transformers computes in float32."""
    assert kl.passed
    assert gap.passed
    assert nats(kl) < 1e-9
    assert nats(gap) < 1e-4
    assert kl.path == path


@pytest.mark.parametrize("name", ["qwen3", "llama-biases", "mixtral"])
def test_float32_is_transformers_own(name: str, tmp_path: Path) -> None:
    write_tiny(MODELS[name], tmp_path)
    kl, gap = checked(tmp_path)
    assert_same(kl, gap, "transformers in float32")


def checked_on_ranks(folder: Path, kv: CacheDtype = "auto") -> list[Result]:
    """The same of two ranks, of which the first has the reference."""
    config = config_of(folder, kv)
    reference = model_reference(config)
    assert reference is not None

    def work(exchange: RankExchange) -> list[Result]:
        if exchange.rank == 0:
            return list(model_checks(config, reference, exchange))
        served_logits(config, reference.ids, exchange)
        return []

    return on_ranks(2, work)[0]


@pytest.mark.parametrize("name", ["qwen3", "mixtral"])
def test_ranks_serve_what_transformers_computes(name: str, tmp_path: Path) -> None:
    write_tiny(WIDE_MODELS[name], tmp_path)
    kl, gap = checked_on_ranks(tmp_path)
    assert_same(kl, gap, "transformers in float32, 2 ranks")
    kl, _ = checked_on_ranks(tmp_path, "fp8")
    assert kl.passed
    assert nats(kl) > 1e-6


def test_ranks_that_add_up_nothing_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(WIDE_MODELS["qwen3"], tmp_path)
    monkeypatch.setattr(reader, "summed", lambda product, exchange: product)
    kl, gap = checked_on_ranks(tmp_path)
    assert not kl.passed
    assert not gap.passed


def test_bfloat16_is_bounded_by_transformers_own() -> None:
    kl, gap = checked(DEMO, dtype="bfloat16")
    assert kl.passed
    assert gap.passed
    assert 1e-5 < nats(kl) < float(kl.threshold) < 1e-3


def test_weights_and_cache_in_float8() -> None:
    for result in (checked(DEMO, quantization="fp8")[0], checked(DEMO, "fp8")[0]):
        assert result.passed
        assert 1e-4 < nats(result) < 0.02


def test_a_quantized_checkpoint_is_compared_with_its_dequantized_weights(tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rounded = round_weight(weight, 32, symmetric=True)
        return gptq(rounded), rounded.values()

    write_quantized(tmp_path, GPTQ, module)
    kl, gap = checked(tmp_path)
    assert kl.passed
    assert gap.passed
    assert nats(gap) < 1e-3
    assert kl.path == "dequantized weights in float32"


def test_a_scale_of_the_next_channel_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def off_by_one(weight: torch.Tensor) -> Fp8Rows:
        rows = quantize_rows(weight)
        return rows._replace(scales=rows.scales.roll(1))

    monkeypatch.setattr(fp8, "quantize_rows", off_by_one)
    kl, _ = checked(DEMO, quantization="fp8")
    assert not kl.passed


def test_a_key_in_the_wrong_block_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of the steps after the prompt alone: its first block is another's."""
    write_tiny(MODELS["qwen3"], tmp_path)

    class Inputs(AttentionInputs):
        @classmethod
        def of_row(
            cls, blocks: torch.Tensor, block_size: int, start: int, end: int
        ) -> AttentionInputs:
            if end - start == 1:
                blocks = torch.cat([blocks[1:2], blocks[1:]])
            return super().of_row(blocks, block_size, start, end)

    monkeypatch.setattr(model_check, "AttentionInputs", Inputs)
    kl, gap = checked(tmp_path)
    assert not kl.passed
    assert not gap.passed


def test_nan_in_weights_fails(tmp_path: Path) -> None:
    write_tiny(MODELS["qwen3"], tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 4] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    kl, gap = checked(tmp_path)
    assert not kl.passed
    assert not gap.passed


def test_a_reference_that_does_not_fit_runs_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_tiny(MODELS["qwen3"], tmp_path)
    run, calls = model_check._of_transformers, []

    def no_room_at_first(*given: Any) -> torch.Tensor:
        calls.append(given)
        if len(calls) == 1:
            raise torch.OutOfMemoryError
        return run(*given)

    monkeypatch.setattr(model_check, "_of_transformers", no_room_at_first)
    kl, _ = checked(tmp_path)
    assert kl.passed
    assert len(calls) == 2
    assert "runs on the CPU" in caplog.text


def test_random_weights_have_no_reference() -> None:
    config = EngineConfig(model=ModelConfig(model=str(DEMO), device="cpu", load_format="dummy"))
    reference = model_reference(config)
    assert reference is None
    (result,) = model_checks(config, reference, LoneRank())
    assert result.statistic == "random weights"
