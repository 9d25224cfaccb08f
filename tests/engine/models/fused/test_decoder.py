"""The fused decoder against transformers: same logits, however rows are cut into steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

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


def test_positions_a_step_past_the_context_can_be_asked_for(tmp_path: Path) -> None:
    write_tiny(MODELS["llama"], tmp_path)
    model = load(tmp_path, max_model_len=LENGTH_SERVED)
    assert serve(model, some_ids()).isfinite().all()
    assert model.max_position == SIZES["max_position_embeddings"]


LENGTH_SERVED = 69
"""One token less than `serve` asks for."""
