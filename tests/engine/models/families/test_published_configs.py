"""Models by the keys of configs as their authors published them, which transformers has renamed
since: `rope_theta`, `rope_scaling` with `type`, `sliding_window_pattern` and what nobody reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine.models.decoder import Decoder
from tests.engine.models.serving import SIZES, assert_same_logits, load, write_tiny

COMMON: dict[str, Any] = {
    **SIZES,
    "hidden_size": 64,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.02,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0",
    "use_cache": True,
}
LLAMA3 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
    "rope_type": "llama3",
}
QWEN: dict[str, Any] = {
    "max_window_layers": 1,
    "rope_theta": 1e6,
    "sliding_window": 16,
    "use_mrope": False,
}
EXPERTS: dict[str, Any] = {
    "num_experts_per_tok": 3,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}
LONG: dict[str, Any] = {
    "long_factor": [1.0 + i for i in range(6)],
    "short_factor": [1.0 + 0.1 * i for i in range(6)],
    "type": "longrope",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {
        "model_type": "llama",
        "head_dim": 32,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rope_scaling": LLAMA3,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "eos_token_id": [1, 5, 6],
    },
    "MistralForCausalLM": {
        "model_type": "mistral",
        "head_dim": 24,
        "rope_theta": 1e6,
        "sliding_window": None,
        "tie_word_embeddings": False,
    },
    "Qwen2ForCausalLM": QWEN
    | {
        "model_type": "qwen2",
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32, "type": "yarn"},
        "tie_word_embeddings": False,
        "use_sliding_window": False,
    },
    "Qwen3MoeForCausalLM": EXPERTS
    | QWEN
    | {
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "head_dim": 32,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "num_experts": 8,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "use_sliding_window": True,
    },
    "MixtralForCausalLM": EXPERTS
    | {
        "model_type": "mixtral",
        "num_local_experts": 8,
        "rope_theta": 1e6,
        "sliding_window": None,
        "tie_word_embeddings": False,
    },
    "Gemma2ForCausalLM": {
        "model_type": "gemma2",
        "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": 30.0,
        "head_dim": 64,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 64,
        "rope_theta": 1e4,
        "sliding_window": 16,
        "sliding_window_size": 16,
    },
    "Gemma3ForCausalLM": {
        "model_type": "gemma3_text",
        "attn_logit_softcapping": None,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": None,
        "head_dim": 64,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 64,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "rope_theta": 1e6,
        "sliding_window": 16,
        "sliding_window_pattern": 2,
    },
    "Phi3ForCausalLM": {
        "model_type": "phi3",
        "embd_pdrop": 0.0,
        "full_attn_mod": 1,
        "interpolate_factor": 1,
        "lm_head_bias": False,
        "mlp_bias": False,
        "original_max_position_embeddings": 128,
        "partial_rotary_factor": 0.75,
        "resid_pdrop": 0.0,
        "rope_scaling": LONG,
        "rope_theta": 1e4,
        "sliding_window": 262144,
        "tie_word_embeddings": True,
    },
    "Olmo3ForCausalLM": {
        "model_type": "olmo3",
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_scaling": {
            "attention_factor": 1.2079441541679836,
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "rope_type": "yarn",
        },
        "rope_theta": 500000,
        "sliding_window": 16,
        "tie_word_embeddings": False,
    },
    "GraniteForCausalLM": {
        "model_type": "granite",
        "attention_dropout": 0.1,
        "attention_multiplier": 0.125,
        "embedding_multiplier": 12.0,
        "logits_scaling": 0.5,
        "mlp_bias": False,
        "residual_multiplier": 0.22,
        "rope_scaling": None,
        "rope_theta": 1e7,
        "tie_word_embeddings": True,
    },
    "Glm4ForCausalLM": {
        "model_type": "glm4",
        "attention_bias": True,
        "head_dim": 32,
        "partial_rotary_factor": 0.5,
        "rope_theta": 1e4,
        "tie_word_embeddings": False,
        "eos_token_id": [1, 2, 3],
    },
    "Cohere2ForCausalLM": {
        "model_type": "cohere2",
        "_sliding_window_pattern": 2,
        "cache_implementation": "hybrid",
        "head_dim": 32,
        "layer_norm_eps": 1e-5,
        "layer_switch": 2,
        "logit_scale": 1.0,
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rope_theta": 50000,
        "rotary_pct": 1.0,
        "sliding_window": 16,
        "use_gated_activation": True,
        "use_parallel_block": True,
    },
    "Starcoder2ForCausalLM": {
        "model_type": "starcoder2",
        "activation_function": "gelu",
        "embedding_dropout": 0.1,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_epsilon": 1e-5,
        "mlp_type": "default",
        "norm_epsilon": 1e-5,
        "norm_type": "layer_norm",
        "residual_dropout": 0.1,
        "rope_theta": 999999.4,
        "sliding_window": 16,
        "use_bias": True,
    },
    "SmolLM3ForCausalLM": {
        "model_type": "smollm3",
        "layer_types": ["full_attention"] * 2,
        "no_rope_layer_interval": 2,
        "no_rope_layers": [1, 0],
        "rope_scaling": None,
        "rope_theta": 5e6,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "DeepseekV2ForCausalLM": {
        "model_type": "deepseek_v2",
        "aux_loss_alpha": 0.001,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 32,
        "moe_intermediate_size": 24,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_experts_per_tok": 3,
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 40,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 64,
            "type": "yarn",
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "seq_aux": True,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "greedy",
        "v_head_dim": 16,
    },
    "GptOssForCausalLM": EXPERTS
    | {
        "model_type": "gpt_oss",
        "attention_bias": True,
        "experts_per_token": 3,
        "head_dim": 64,
        "initial_context_length": 64,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_local_experts": 4,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 64,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "sliding_window": 16,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_logits(name: str, tmp_path: Path) -> None:
    content = json.dumps(COMMON | CONFIGS[name] | {"architectures": [name]})
    (tmp_path / "config.json").write_text(content)
    write_tiny(AutoConfig.from_pretrained(tmp_path), tmp_path, spread=0.15)
    (tmp_path / "config.json").write_text(content)  # transformers wrote its own names
    reference = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    model = load(tmp_path, max_model_len=100)
    assert isinstance(model, Decoder)
    assert_same_logits(model, reference.eval())
