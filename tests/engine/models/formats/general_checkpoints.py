"""Quantized checkpoints of every kind of layer, for tests."""

from __future__ import annotations

import torch
import transformers as hf

from tests.engine.models.formats.packers import (
    WIDE,
    Tensors,
    awq,
    round_weight,
)
from tests.engine.models.small_models import EVERY_OTHER, rope

WINDOW = {**EVERY_OTHER, "sliding_window": 11}
HALF = rope("default", partial_rotary_factor=0.5)

MODELS = {
    "cohere": hf.CohereConfig(**WIDE, logit_scale=0.7),
    "cohere-biases": hf.CohereConfig(**WIDE, logit_scale=0.7, attention_bias=True),
    "cohere2": hf.Cohere2Config(**WIDE, **WINDOW, logit_scale=1.0),
    "gemma": hf.GemmaConfig(**WIDE, head_dim=16),
    "gemma2": hf.Gemma2Config(**WIDE, **WINDOW, head_dim=16, query_pre_attn_scalar=16),
    "gemma3": hf.Gemma3TextConfig(**WIDE, **WINDOW, head_dim=32, query_pre_attn_scalar=16),
    "glm": hf.GlmConfig(**WIDE, head_dim=16, attention_bias=True),
    "glm4": hf.Glm4Config(**WIDE, head_dim=16),
    "granite": hf.GraniteConfig(**WIDE, residual_multiplier=0.4, logits_scaling=1.5, mlp_bias=True),
    "olmo2": hf.Olmo2Config(**WIDE),
    "olmo3": hf.Olmo3Config(**WIDE, **WINDOW),
    "phi": hf.PhiConfig(**WIDE),
    "phi3": hf.Phi3Config(**WIDE, **HALF, sliding_window=11),
    "stablelm": hf.StableLmConfig(**WIDE, use_qkv_bias=True),
    "stablelm-parallel": hf.StableLmConfig(**WIDE, use_parallel_residual=True),
    "starcoder2": hf.Starcoder2Config(**WIDE, sliding_window=11),
}


def by_awq(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    rounded = round_weight(weight, 32, symmetric=False)
    return awq(rounded), rounded.values()
