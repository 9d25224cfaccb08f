"""Tiny random models of real architectures, written as transformers writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB = 97
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}

_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 16}

FUSED: dict[str, dict[str, Any]] = {
    "llama": {**_SIZES},
    "mistral": {**_SIZES, "sliding_window": 19},
    "qwen2": {**_SIZES, "tie_word_embeddings": True},
    "qwen3": {**_SIZES, "head_dim": 16},
    "mixtral": {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {  # an expert that all tokens take
        **_SIZES,
        **_EXPERTS,
        "shared_expert_intermediate_size": 24,
    },
    "qwen3_moe": {**_SIZES, **_EXPERTS, "head_dim": 16, "norm_topk_prob": True},
    "olmoe": {**_SIZES, "num_experts": 6, "num_experts_per_tok": 3},
    "gemma2": {  # logit and attention soft caps, sliding window on every other layer
        **_SIZES,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 17,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
    },
    "cohere": {**_SIZES, "logit_scale": 0.7},  # attention beside the MLP, neighbours rotated
    "glm4": {**_SIZES, "head_dim": 16},  # norms on both sides, half of each head rotated
    "deepseek_v2": {  # compressed keys and values, groups of experts
        **_SIZES,
        "num_key_value_heads": 4,
        "kv_lora_rank": 20,
        "q_lora_rank": 24,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_routed_experts": 6,
        "num_experts_per_tok": 3,
        "n_group": 3,
        "topk_group": 2,
        "topk_method": "group_limited_greedy",
        "routed_scaling_factor": 2.0,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
    },
    "gpt_oss": {  # attention sinks, mixture of experts, sliding window
        **_SIZES,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 17,
        "rope_scaling": None,
    },
}
FALLBACK: dict[str, dict[str, Any]] = {
    "gpt2": {  # learned positions
        "vocab_size": VOCAB,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 256,
        "bos_token_id": 0,
        "eos_token_id": 1,
    },
    "gpt_neox": {  # parallel residual, partial rotary
        **{k: v for k, v in _SIZES.items() if k != "num_key_value_heads"},
        "rotary_pct": 0.5,
    },
    "bloom": {  # ALiBi
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "n_layer": 2,
        "n_head": 4,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
    },
}


def write_model(kind: str, folder: Path, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Save a tiny random float32 model of an architecture; returns transformers' own."""
    fields = (FUSED | FALLBACK)[kind]
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **(fields | changes))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():  # larger than the usual start, so that greedy choices are not ties
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
            parameter.add_(0.02 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model
