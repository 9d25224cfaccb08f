"""Models of every family on a GPU, for tests."""

from __future__ import annotations

from typing import Any

import transformers as hf

VOCAB, BLOCK_SIZE, NUM_ROWS, LENGTH, SHARED = 384, 16, 4, 176, 64

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 320,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}

WINDOW = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 37}
EXPERTS = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 64}

LATENT = {  # DeepSeek-V2-Lite's heads
    "kv_lora_rank": 64,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 64,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}

GROUPS = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}


def rope(factor: float) -> dict[str, Any]:
    kind = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": factor}
    return {"rope_parameters": kind}


def yarn(**fields: Any) -> dict[str, Any]:
    own = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, **fields}
    return {"rope_parameters": own | {"original_max_position_embeddings": 64}}


def growing() -> dict[str, Any]:
    """Queries that grow with their positions."""
    return yarn(llama_4_scaling_beta=0.3, mscale=1.0, mscale_all_dim=1.0)


FAMILIES = {
    "apertus": hf.ApertusConfig(**SIZES),
    "cohere": hf.CohereConfig(**SIZES, logit_scale=0.7),
    "cohere2": hf.Cohere2Config(**SIZES, **WINDOW, logit_scale=1.0, head_dim=128),
    "deepseek-v2-lite": hf.DeepseekV2Config(
        **SIZES | {"num_key_value_heads": 4}, **LATENT, **yarn(mscale=0.7, mscale_all_dim=0.7)
    ),
    "deepseek-v2": hf.DeepseekV2Config(
        **SIZES | {"num_key_value_heads": 4},
        **LATENT | {"q_lora_rank": 96},
        **GROUPS,
        routed_scaling_factor=3.0,
    ),
    "deepseek-v3": hf.DeepseekV3Config(
        **SIZES | {"num_key_value_heads": 4},
        **LATENT | {"q_lora_rank": 96},
        n_group=4,
        topk_group=2,
    ),
    "ernie-moe": hf.Ernie4_5_MoeConfig(
        **SIZES,
        moe_k=3,
        moe_num_experts=7,
        moe_intermediate_size=64,
        moe_num_shared_experts=2,
        moe_layer_start_index=1,
    ),
    "gemma": hf.GemmaConfig(**SIZES, head_dim=256),
    "gemma2": hf.Gemma2Config(
        **SIZES, **WINDOW, head_dim=128, query_pre_attn_scalar=100, attn_logit_softcapping=5.0
    ),
    "gemma3": hf.Gemma3TextConfig(**SIZES, **WINDOW, head_dim=128, query_pre_attn_scalar=100),
    "gemma3-wide": hf.Gemma3TextConfig(**SIZES, **WINDOW, head_dim=256),
    "glm": hf.GlmConfig(**SIZES, head_dim=128, attention_bias=True),
    "glm4": hf.Glm4Config(**SIZES, head_dim=64),
    "gpt-oss": hf.GptOssConfig(
        **SIZES,
        **WINDOW,
        head_dim=64,
        num_local_experts=8,
        num_experts_per_tok=3,
        **yarn(beta_fast=32.0, beta_slow=1.0, truncate=False),
    ),
    "granite": hf.GraniteConfig(
        **SIZES,
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        attention_multiplier=0.1,
        logits_scaling=0.5,
    ),
    "hunyuan": hf.HunYuanDenseV1Config(**SIZES, head_dim=128),
    "minimax-m2": hf.MiniMaxM2Config(
        **SIZES, head_dim=128, num_local_experts=7, num_experts_per_tok=3, **rope(0.5)
    ),
    "ministral3": hf.Ministral3Config(**SIZES, head_dim=64, **growing()),
    "olmo2": hf.Olmo2Config(**SIZES),
    "olmo3": hf.Olmo3Config(**SIZES, **WINDOW),
    "phi": hf.PhiConfig(**SIZES),
    "phi-80": hf.PhiConfig(**SIZES | {"hidden_size": 320}),
    "phi3-96": hf.Phi3Config(**SIZES | {"hidden_size": 384}, sliding_window=37),
    "phi3-partial": hf.Phi3Config(**SIZES | {"num_attention_heads": 2}, **rope(0.75)),
    "smollm3": hf.SmolLM3Config(**SIZES, no_rope_layers=[1, 0]),
    "stablelm": hf.StableLmConfig(**SIZES),
    "stablelm-parallel": hf.StableLmConfig(**SIZES, use_parallel_residual=True),
    "starcoder2": hf.Starcoder2Config(**SIZES, sliding_window=37),
    "qwen2-moe": hf.Qwen2MoeConfig(**SIZES, **EXPERTS, shared_expert_intermediate_size=128),
    "qwen3-moe": hf.Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=128, norm_topk_prob=True),
    "olmoe": hf.OlmoeConfig(**SIZES, num_experts=6, num_experts_per_tok=3),
}
if hasattr(hf, "Gemma4TextConfig"):
    GEMMA4: dict[str, Any] = WINDOW | {
        "head_dim": 128,
        "global_head_dim": 512,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "enable_moe_block": True,
        "num_experts": 7,
        "top_k_experts": 3,
        "moe_intermediate_size": 64,
    }
    PER_LAYER = {"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": VOCAB}
    FAMILIES["gemma4"] = hf.Gemma4TextConfig(**SIZES, **GEMMA4, **PER_LAYER)
