"""Tiny models whose layers have experts."""

from __future__ import annotations

from typing import Any

import transformers as hf

from tests.engine.models.serving import SIZES

WIDE: dict[str, Any] = {**SIZES, "hidden_size": 64, "num_key_value_heads": 2}
EXPERTS: dict[str, Any] = {
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
}
MODELS = {
    "mixtral": hf.MixtralConfig(**WIDE, num_local_experts=5, num_experts_per_tok=2),
    "qwen2-moe": hf.Qwen2MoeConfig(**WIDE, **EXPERTS, shared_expert_intermediate_size=40),
    "qwen3-moe": hf.Qwen3MoeConfig(**WIDE, **EXPERTS, head_dim=16, norm_topk_prob=True),
    "olmoe": hf.OlmoeConfig(**WIDE, num_experts=6, num_experts_per_tok=3),
    "deepseek-v2": hf.DeepseekV2Config(
        **WIDE | {"num_key_value_heads": 4},
        kv_lora_rank=32,
        q_lora_rank=48,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=24,
        n_routed_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        routed_scaling_factor=1.5,
        first_k_dense_replace=1,
    ),
}
