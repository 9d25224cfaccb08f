"""The fused decoder against transformers: same logits, however rows are cut into steps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from engine.errors import ModelError
from engine.models.fused.decoder import Decoder
from tests.engine.models.serving import (
    GROUPED,
    SIZES,
    assert_same_logits,
    expected,
    load,
    serve,
    some_ids,
    write_tiny,
)


def rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1000.0, **fields}}


YARN = rope("yarn", factor=4.0, original_max_position_embeddings=32)
LLAMA3 = rope(
    "llama3",
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
EVERY_OTHER = {"layer_types": ["sliding_attention", "full_attention"]}
MODELS = {
    "llama": LlamaConfig(**GROUPED),
    "llama-ungrouped": LlamaConfig(**SIZES),
    "llama-tied": LlamaConfig(**GROUPED, tie_word_embeddings=True),
    "llama-biases": LlamaConfig(**GROUPED, attention_bias=True, mlp_bias=True),
    "llama-head-dim": LlamaConfig(**GROUPED, head_dim=16),
    "llama-linear": LlamaConfig(**GROUPED, **rope("linear", factor=3.0)),
    "llama-llama3": LlamaConfig(**GROUPED, **LLAMA3),
    "llama-yarn": LlamaConfig(**GROUPED, **YARN),
    "llama-dynamic": LlamaConfig(**GROUPED, **rope("dynamic", factor=2.0)),
    "mistral": MistralConfig(**GROUPED, sliding_window=None),
    "mistral-window": MistralConfig(**GROUPED, sliding_window=11),
    "qwen2": Qwen2Config(**GROUPED),
    "qwen2-window": Qwen2Config(
        **GROUPED, use_sliding_window=True, sliding_window=9, max_window_layers=1
    ),
    "qwen3": Qwen3Config(**GROUPED, head_dim=16),
    "qwen3-window": Qwen3Config(
        **GROUPED, head_dim=8, use_sliding_window=True, sliding_window=9, **EVERY_OTHER
    ),
    "qwen3-biases": Qwen3Config(**GROUPED, head_dim=8, attention_bias=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits(name: str, tmp_path: Path) -> None:
    reference = write_tiny(MODELS[name], tmp_path)
    model = load(tmp_path, model_impl="fused")
    assert isinstance(model, Decoder)
    assert_same_logits(model, reference)


def test_sharded_files(tmp_path: Path) -> None:
    reference = write_tiny(MODELS["llama"], tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    assert_same_logits(load(tmp_path), reference)


def test_a_window_off_by_one_is_noticed(tmp_path: Path) -> None:
    reference = write_tiny(MODELS["mistral-window"], tmp_path)
    model, ids = load(tmp_path), some_ids()
    model.attention_specs = [replace(s, sliding_window=12) for s in model.attention_specs]
    assert (serve(model, ids) - expected(reference, ids)).abs().max() > 1e-2


def test_the_fallback_agrees(tmp_path: Path) -> None:
    reference = write_tiny(MODELS["qwen3-window"], tmp_path)
    model = load(tmp_path, model_impl="transformers")
    assert not isinstance(model, Decoder)
    assert_same_logits(model, reference)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_narrow_types_stay_near(name: str, dtype: str, tmp_path: Path) -> None:
    reference = write_tiny(MODELS[name], tmp_path)
    ids = some_ids()
    logits, wanted = serve(load(tmp_path, dtype=dtype), ids), expected(reference, ids)
    assert logits.dtype == torch.float32
    # Some thirty roundings of independent sign on the way to a logit.
    error = (logits - wanted).norm() / wanted.norm()
    assert error < 30**0.5 * torch.finfo(getattr(torch, dtype)).eps


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_fp8_logits_are_those_of_the_scheme(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers' own model with each product of its layers in float64 over quantized rows.

    An input within float32's error of the middle of two float8 numbers may round the other way,
    which moves logits by far more than the bound. There are about 60,000 inputs and the share of
    such is some 2^-20: none is expected with these weights, and none is met.
    """
    reference = write_tiny(MODELS[name], tmp_path)
    ids = some_ids()
    unquantized = expected(reference, ids)
    for layer in reference.model.layers:
        for module in layer.modules():
            if isinstance(module, torch.nn.Linear):
                monkeypatch.setattr(module, "forward", partial(fp8_product, module))
    wanted = expected(reference, ids)
    logits = serve(load(tmp_path, quantization="fp8"), ids)
    assert (logits - wanted).abs().max() < 1e-4
    assert (wanted - unquantized).abs().max() > 1e-2, "the scheme does round"


def fp8_product(module: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    left, right = rounded_rows(x), rounded_rows(module.weight)
    out = left @ right.T
    if module.bias is not None:
        out = out + module.bias.double()
    return out.to(x.dtype)


def rounded_rows(x: torch.Tensor) -> torch.Tensor:
    """The rows in float64 after rounding to e4m3 with a scale a row, by numpy alone."""
    scale = x.float().abs().amax(-1, keepdim=True) / 448.0
    scaled = (x.float() / scale).double().numpy(force=True)
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(scaled), 1e-30))), -6.0)
    step = 2.0 ** (exponent - 3.0)
    rounded = torch.from_numpy(np.round(scaled / step) * step)
    return rounded * scale.double()


def test_quantization_needs_the_fused_decoder(tmp_path: Path) -> None:
    write_tiny(MODELS["llama"], tmp_path)
    with pytest.raises(ModelError, match="--quantization fp8: only the fused decoder quantizes"):
        load(tmp_path, quantization="fp8", model_impl="transformers")


def test_positions_a_step_past_the_context_can_be_asked_for(tmp_path: Path) -> None:
    write_tiny(MODELS["llama"], tmp_path)
    model = load(tmp_path, max_model_len=LENGTH_SERVED)
    assert serve(model, some_ids()).isfinite().all()
    assert model.max_position == SIZES["max_position_embeddings"]


LENGTH_SERVED = 69
"""One token less than `serve` asks for."""
