"""`--batch-invariant`: every way to serve gives the same bits, and what breaks that is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.attention.invariant import InvariantPlainAttention
from engine.config import CacheConfig, ConfigError, EngineConfig, ModelConfig, SchedulerConfig
from engine.errors import ModelError
from engine.kernels.invariant import product
from engine.kernels.recurrent import recurrence
from engine.kernels.recurrent.matrices import Rule
from engine.startup.build import invariant_parts
from engine.startup.verify.invariance import invariance_results
from sampling.selftest.checks import Result
from tests.engine.models.families.hybrid_models import FAMILIES, config_of, write_hybrid
from tests.engine.models.formats.kinds import EVEN
from tests.engine.models.formats.kinds import KINDS as QUANTIZED
from tests.engine.models.formats.packers import write_quantized
from tests.engine.models.serving import write_tiny
from tests.engine.models.small_models import MODELS
from tests.engine.tiny_models import write_model

PROMPT_LENS = (1, 16, 40, 65, 90)
KINDS = ("llama", "qwen3", "mistral", "gemma2", "cohere")
EXPERTS = ("mixtral", "qwen2_moe", "gpt_oss", "deepseek_v2")


def _config(
    folder: Path,
    device: Any,
    dtype: Any = "float32",
    quantization: Any = None,
    keys: Any = "auto",
    **fields: Any,
) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(
            model=str(folder),
            device=device,
            dtype=dtype,
            quantization=quantization,
            batch_invariant=True,
        ),
        cache=CacheConfig(num_blocks=400, num_snapshots=200, dtype=keys),
        scheduler=SchedulerConfig(max_rows=12),
        **fields,
    )


def _failed(config: EngineConfig) -> list[Result]:
    results = list(invariance_results(config, invariant_parts(config), PROMPT_LENS))
    assert len(results) >= 11
    return [result for result in results if not result.passed]


@pytest.mark.parametrize("kind", [*KINDS, *EXPERTS])
def test_bits_on_a_cpu(kind: str, tmp_path: Path) -> None:
    write_model(kind, tmp_path)
    assert not _failed(_config(tmp_path, "cpu"))


def test_bits_of_states_on_a_cpu(tmp_path: Path) -> None:
    """A delta rule, token by token in every way."""
    write_hybrid(config_of("qwen3_5"), tmp_path)
    assert not _failed(_config(tmp_path, "cpu"))


@pytest.mark.slow
def test_chunks_of_a_recurrence_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefilled by chunks, a delta rule has other bits than token by token."""
    chunk_end = recurrence._chunk_end

    def in_chunks(position: int, rule: Rule, extent: Any) -> int:
        return chunk_end(position, rule._replace(by_token=False), extent)

    monkeypatch.setattr(recurrence, "_chunk_end", in_chunks)
    write_hybrid(config_of("qwen3_5"), tmp_path)
    assert "invariance: scored as prompts" in {
        result.check for result in _failed(_config(tmp_path, "cpu"))
    }


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_bits_of_every_hybrid_on_a_cpu(family: str, tmp_path: Path) -> None:
    write_hybrid(config_of(family), tmp_path)
    assert not _failed(_config(tmp_path, "cpu"))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_bits_of_every_family_on_a_cpu(name: str, tmp_path: Path) -> None:
    write_tiny(MODELS[name], tmp_path)
    assert not _failed(_config(tmp_path, "cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_bits_of_states_on_a_gpu(family: str, tmp_path: Path) -> None:
    write_hybrid(config_of(family), tmp_path)
    assert not _failed(_config(tmp_path, "cuda", "bfloat16"))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["gemma4", "gemma4-experts", "hunyuan", "starcoder2", "deepseek-v2"]
)
def test_bits_of_more_families_on_a_gpu(name: str, tmp_path: Path) -> None:
    write_tiny(MODELS[name], tmp_path)
    assert not _failed(_config(tmp_path, "cuda", "bfloat16"))


@pytest.mark.parametrize("kind", ["qwen3", "qwen2_moe"])
def test_bits_of_float8_on_a_cpu(kind: str, tmp_path: Path) -> None:
    write_model(kind, tmp_path)
    assert not _failed(_config(tmp_path, "cpu", quantization="fp8"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("kind", [*KINDS, *EXPERTS])
def test_bits_on_a_gpu(kind: str, dtype: str, tmp_path: Path) -> None:
    write_model(kind, tmp_path)
    assert not _failed(_config(tmp_path, "cuda", dtype))


def test_bits_of_float8_keys_on_a_cpu(tmp_path: Path) -> None:
    write_model("qwen3", tmp_path)
    assert not _failed(_config(tmp_path, "cpu", keys="fp8"))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["qwen3", "gemma2"])
def test_bits_of_float8_keys_on_a_gpu(kind: str, tmp_path: Path) -> None:
    write_model(kind, tmp_path)
    assert not _failed(_config(tmp_path, "cuda", "bfloat16", keys="fp8"))


@pytest.mark.parametrize("kind", QUANTIZED)
def test_bits_of_quantized_checkpoints_on_a_cpu(kind: str, tmp_path: Path) -> None:
    config, module = QUANTIZED[kind]
    write_quantized(tmp_path, config, module, EVEN)
    assert not _failed(_config(tmp_path, "cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", QUANTIZED)
def test_bits_of_quantized_checkpoints_on_a_gpu(kind: str, tmp_path: Path) -> None:
    config, module = QUANTIZED[kind]
    write_quantized(tmp_path, config, module, EVEN)
    assert not _failed(_config(tmp_path, "cuda", "bfloat16"))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["qwen3", "qwen2_moe"])
def test_bits_of_float8_on_a_gpu(kind: str, tmp_path: Path) -> None:
    write_model(kind, tmp_path, hidden_size=256, intermediate_size=512)
    assert not _failed(_config(tmp_path, "cuda", "bfloat16", "fp8"))


def test_products_that_depend_on_the_batch_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large enough that the library has another order for one row than for several."""
    write_model("llama", tmp_path, hidden_size=256, intermediate_size=512)
    monkeypatch.setattr(product, "_by_blocks", torch.nn.functional.linear)
    assert "invariance: beside one another" in {
        result.check for result in _failed(_config(tmp_path, "cpu"))
    }


def test_what_cannot_promise_is_refused(tmp_path: Path) -> None:
    write_model("bloom", tmp_path)
    with pytest.raises(ModelError, match="--batch-invariant"):
        invariant_parts(_config(tmp_path, "cpu"))


def test_flags_that_cannot_go_with_it(tmp_path: Path) -> None:
    model = ModelConfig(model="m", batch_invariant=True, model_impl="transformers")
    with pytest.raises(ConfigError, match="--batch-invariant cannot be promised with --"):
        EngineConfig(model=model)


def test_the_first_layer_that_differs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layer 1's attention adds the number of tokens of its step to what it gives."""
    write_model("llama", tmp_path)
    config = _config(tmp_path, "cpu")
    attend = InvariantPlainAttention.attend_stored

    def attend_by_batch(backend: Any, layer: int, q: torch.Tensor) -> torch.Tensor:
        out = attend(backend, layer, q)
        return out + 0.01 * len(q) if layer == 1 else out

    monkeypatch.setattr(InvariantPlainAttention, "attend_stored", attend_by_batch)
    failed = {result.check: result.path for result in _failed(config)}
    assert failed["invariance: beside one another"].endswith(", layer 1")
