"""Configs with the shapes of published models whose layers keep states, for random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COMMON: dict[str, Any] = {
    "max_position_embeddings": 32768,
    "initializer_range": 0.02,
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}
QWEN: dict[str, Any] = {
    "vocab_size": 248320,
    "head_dim": 256,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
    },
    "tie_word_embeddings": False,
}
ATTENDING = {2, 6, 10, 14, 18, 21}
"""The layers of LFM2-8B-A1B that attend."""
HYBRIDS: dict[str, dict[str, Any]] = {  # the first tells nothing: it is tried out on a CPU
    "qwen-tiny": QWEN
    | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": 30 * 1024,
        "hidden_size": 64,
        "head_dim": 16,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "qwen3.6-27b": QWEN
    | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "linear_num_value_heads": 48,
    },
    "qwen3.6-35b-a3b": QWEN
    | {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "linear_num_value_heads": 32,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    "nemotron-3-nano-30b-a3b": {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "vocab_size": 131072,
        "hidden_size": 2688,
        "intermediate_size": 1856,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "mamba_num_heads": 64,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "n_routed_experts": 128,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712,
        "routed_scaling_factor": 2.5,
        "tie_word_embeddings": False,
    },
    "lfm2-8b-a1b": {
        "architectures": ["Lfm2MoeForCausalLM"],
        "model_type": "lfm2_moe",
        "vocab_size": 65536,
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1792,
        "num_dense_layers": 2,
        "layer_types": ["full_attention" if i in ATTENDING else "conv" for i in range(24)],
        "tie_word_embeddings": True,
    },
}


def write_hybrid_shape(name: str, folder: Path, num_layers: int | None = None) -> Path:
    """Write a folder with the config of a shape, or of its first layers alone."""
    config = COMMON | HYBRIDS[name]
    if num_layers is not None:
        for field in ("hybrid_override_pattern", "layer_types"):
            if field in config:
                config[field] = config[field][:num_layers]
        config["num_hidden_layers"] = num_layers
    (folder / "config.json").write_text(json.dumps(config))
    return folder
