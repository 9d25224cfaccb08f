"""Configs of small models of every family, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers as hf

from tests.engine.models.serving import (
    GROUPED,
    LATENT,
    SIZES,
)


def rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1000.0, **fields}}


YARN_FIELDS = {"factor": 4.0, "original_max_position_embeddings": 32}
YARN = rope("yarn", **YARN_FIELDS)

LLAMA3 = rope(
    "llama3",
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)

EVERY_OTHER = {"layer_types": ["sliding_attention", "full_attention"]}
WINDOW = {**EVERY_OTHER, "sliding_window": 11}

LONG = rope(
    "longrope",
    short_factor=[1.0, 1.1, 1.2, 1.3],
    long_factor=[2.0] * 4,
    original_max_position_embeddings=128,
)

EXPERTS = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 16}


def growth() -> dict[str, Any]:
    """A dictionary of its own: some configs write into theirs."""
    fields = {"llama_4_scaling_beta": 0.3, "mscale": 1.0, "mscale_all_dim": 1.0}
    return rope("yarn", factor=4.0, original_max_position_embeddings=16, **fields)


ERNIE_EXPERTS: dict[str, Any] = {
    "moe_k": 3,
    "moe_num_experts": 6,
    "moe_intermediate_size": 16,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
}

MODELS = {
    "apertus": hf.ApertusConfig(**GROUPED, attention_bias=True),
    "hunyuan": hf.HunYuanDenseV1Config(
        **GROUPED, head_dim=16, **rope("dynamic", alpha=50.0, factor=1.0), attention_bias=True
    ),
    "hunyuan-moe": hf.HunYuanMoEV1Config(**GROUPED, head_dim=8, num_experts=6, moe_topk=[2, 3]),
    "llama": hf.LlamaConfig(**GROUPED),
    "llama-ungrouped": hf.LlamaConfig(**SIZES),
    "llama-tied": hf.LlamaConfig(**GROUPED, tie_word_embeddings=True),
    "llama-biases": hf.LlamaConfig(**GROUPED, attention_bias=True, mlp_bias=True),
    "llama-head-dim": hf.LlamaConfig(**GROUPED, head_dim=16),
    "llama-linear": hf.LlamaConfig(**GROUPED, **rope("linear", factor=3.0)),
    "llama-llama3": hf.LlamaConfig(**GROUPED, **LLAMA3),
    "llama-yarn": hf.LlamaConfig(**GROUPED, **YARN),
    "llama-dynamic": hf.LlamaConfig(**GROUPED, **rope("dynamic", factor=2.0)),
    "mistral": hf.MistralConfig(**GROUPED, sliding_window=None),
    "ministral3": hf.Ministral3Config(**GROUPED, **growth(), head_dim=16),
    "minimax-m2": hf.MiniMaxM2Config(
        **GROUPED,
        head_dim=16,
        num_local_experts=6,
        num_experts_per_tok=3,
        **rope("default", partial_rotary_factor=0.5),
    ),
    "mistral-window": hf.MistralConfig(**GROUPED, sliding_window=11),
    "qwen2": hf.Qwen2Config(**GROUPED),
    "qwen2-window": hf.Qwen2Config(
        **GROUPED, use_sliding_window=True, sliding_window=9, max_window_layers=1
    ),
    "qwen3": hf.Qwen3Config(**GROUPED, head_dim=16),
    "qwen3-window": hf.Qwen3Config(
        **GROUPED, head_dim=8, use_sliding_window=True, sliding_window=9, **EVERY_OTHER
    ),
    "qwen3-biases": hf.Qwen3Config(**GROUPED, head_dim=8, attention_bias=True),
    "mixtral": hf.MixtralConfig(**GROUPED, num_local_experts=5, num_experts_per_tok=2),
    "mixtral-window": hf.MixtralConfig(**GROUPED, num_local_experts=4, sliding_window=11),
    "qwen2-moe": hf.Qwen2MoeConfig(**GROUPED, **EXPERTS, shared_expert_intermediate_size=40),
    "qwen2-moe-normalized": hf.Qwen2MoeConfig(
        **GROUPED,
        **EXPERTS,
        shared_expert_intermediate_size=24,
        norm_topk_prob=True,
        use_sliding_window=True,
        sliding_window=9,
        max_window_layers=1,
    ),
    "qwen3-moe": hf.Qwen3MoeConfig(**GROUPED, **EXPERTS, head_dim=16, norm_topk_prob=True),
    "qwen3-moe-mixed": hf.Qwen3MoeConfig(**GROUPED, **EXPERTS, head_dim=8, decoder_sparse_step=2),
    "qwen3-moe-plain-layer": hf.Qwen3MoeConfig(**GROUPED, **EXPERTS, mlp_only_layers=[0]),
    "olmoe": hf.OlmoeConfig(**GROUPED, num_experts=6, num_experts_per_tok=3),
    "olmoe-clipped": hf.OlmoeConfig(
        **GROUPED, num_experts=6, num_experts_per_tok=3, clip_qkv=0.5, norm_topk_prob=True
    ),
    "cohere": hf.CohereConfig(**GROUPED, logit_scale=0.7),
    "cohere-biases": hf.CohereConfig(
        **GROUPED, attention_bias=True, tie_word_embeddings=False, logit_scale=1.0
    ),
    "cohere2": hf.Cohere2Config(**GROUPED, **WINDOW, logit_scale=1.0),
    "deepseek-v2-lite": hf.DeepseekV2Config(**SIZES, **LATENT, first_k_dense_replace=1),
    "deepseek-dense": hf.DeepseekV2Config(
        **SIZES, **LATENT | {"q_lora_rank": 16}, first_k_dense_replace=2
    ),
    "deepseek-v2": hf.DeepseekV2Config(
        **SIZES,
        **LATENT | {"q_lora_rank": 24, "v_head_dim": 20, "topk_method": "group_limited_greedy"},
        rms_norm_eps=1e-2,
        n_group=3,
        topk_group=2,
        routed_scaling_factor=2.5,
        **rope("yarn", **YARN_FIELDS, mscale=0.8, mscale_all_dim=0.6),
    ),
    "deepseek-v3": hf.DeepseekV3Config(
        **SIZES,
        num_key_value_heads=4,
        **LATENT | {"q_lora_rank": 24},
        n_group=3,
        topk_group=2,
        first_k_dense_replace=1,
        **rope("yarn", **YARN_FIELDS, mscale=1.0, mscale_all_dim=1.0),
    ),
    "deepseek-v3-ungrouped": hf.DeepseekV3Config(
        **SIZES,
        num_key_value_heads=4,
        **LATENT,
        n_group=1,
        topk_group=1,
        norm_topk_prob=False,
        rope_interleave=False,
    ),
    "ernie": hf.Ernie4_5Config(**GROUPED, head_dim=16, use_bias=True),
    "ernie-moe": hf.Ernie4_5_MoeConfig(**GROUPED, **ERNIE_EXPERTS),
    "gemma": hf.GemmaConfig(**GROUPED, head_dim=16),
    "gemma2": hf.Gemma2Config(
        **GROUPED,
        **WINDOW,
        head_dim=8,
        query_pre_attn_scalar=10,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    ),
    "gemma3": hf.Gemma3TextConfig(**GROUPED, **WINDOW, head_dim=8, query_pre_attn_scalar=10),
    "gemma-wide-heads": hf.GemmaConfig(**GROUPED, head_dim=256),
    "glm": hf.GlmConfig(**GROUPED, head_dim=8, attention_bias=True),
    "glm-yarn": hf.GlmConfig(
        **GROUPED, head_dim=16, **rope("yarn", **YARN_FIELDS, partial_rotary_factor=0.5)
    ),
    "glm4": hf.Glm4Config(**GROUPED, head_dim=16),
    "glm4-moe": hf.Glm4MoeConfig(
        **GROUPED,
        head_dim=16,
        n_routed_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        n_group=3,
        topk_group=2,
        first_k_dense_replace=1,
        routed_scaling_factor=1.5,
        attention_bias=True,
        use_qk_norm=True,
    ),
    "glm4-moe-lite": hf.Glm4MoeLiteConfig(
        **SIZES,
        num_key_value_heads=4,
        **LATENT | {"q_lora_rank": 24},
        rms_norm_eps=1e-2,
        mlp_layer_types=["sparse", "dense"],
    ),
    "gpt-oss": hf.GptOssConfig(
        **GROUPED,
        **WINDOW,
        head_dim=8,
        num_local_experts=5,
        num_experts_per_tok=2,
        **rope("yarn", **YARN_FIELDS, truncate=False, beta_fast=32.0, beta_slow=1.0),
    ),
    "granite": hf.GraniteConfig(
        **GROUPED,
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        attention_multiplier=0.2,
        logits_scaling=1.5,
        mlp_bias=True,
    ),
    "olmo2": hf.Olmo2Config(**GROUPED),
    "olmo2-ungrouped": hf.Olmo2Config(**SIZES, **LLAMA3, attention_bias=True),
    "olmo3": hf.Olmo3Config(**GROUPED, **WINDOW),
    "phi": hf.PhiConfig(**SIZES),
    "phi-tied": hf.PhiConfig(**GROUPED, tie_word_embeddings=True),
    "phi3": hf.Phi3Config(**GROUPED, sliding_window=11),
    "phi3-partial": hf.Phi3Config(**GROUPED, **rope("default", partial_rotary_factor=0.5)),
    "phi3-longrope": hf.Phi3Config(
        **GROUPED | {"max_position_embeddings": 512}, **LONG, original_max_position_embeddings=128
    ),
    "smollm3": hf.SmolLM3Config(**GROUPED, no_rope_layers=[1, 0]),
    "stablelm": hf.StableLmConfig(**GROUPED),
    "stablelm-parallel": hf.StableLmConfig(
        **GROUPED, use_parallel_residual=True, use_qkv_bias=True
    ),
    "starcoder2": hf.Starcoder2Config(**GROUPED, sliding_window=11),
    "starcoder2-no-biases": hf.Starcoder2Config(**GROUPED, use_bias=False, sliding_window=None),
}

GEMMA4: dict[str, Any] = {
    **GROUPED,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 11,
    "head_dim": 8,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 3.0,
    "use_bidirectional_attention": "vision",
}

GEMMA4_SHARED: dict[str, Any] = {
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": 97,
}


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


ONE_GLOBAL_HEAD = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
GEMMA4_EXPERTS: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 3,
    "moe_intermediate_size": 16,
}
if hasattr(hf, "Gemma4TextConfig"):
    MODELS["gemma4"] = hf.Gemma4TextConfig(**GEMMA4, **ONE_GLOBAL_HEAD)
    MODELS["gemma4-experts"] = hf.Gemma4TextConfig(**GEMMA4, **ONE_GLOBAL_HEAD, **GEMMA4_EXPERTS)
    MODELS["gemma4-shared"] = hf.Gemma4TextConfig(**GEMMA4 | GEMMA4_SHARED)
    slow = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 8.0}
    MODELS["gemma4-slow"] = hf.Gemma4TextConfig(
        **GEMMA4,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": slow | {"rope_theta": 1e4},
        },
    )
if hasattr(hf, "Mistral4Config"):  # transformers 5.0 has none
    MODELS["mistral4"] = hf.Mistral4Config(
        **SIZES,
        num_key_value_heads=4,
        **LATENT | {"q_lora_rank": 24},
        **growth(),
        first_k_dense_replace=1,
        routed_scaling_factor=2.0,
    )
