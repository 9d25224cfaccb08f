"""Tiny random checkpoints of families whose layers keep states, as transformers saves them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    FalconH1Config,
    GraniteMoeHybridConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    NemotronHConfig,
    OlmoHybridConfig,
    PreTrainedConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

VOCAB = 101
DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "rms_norm_eps": 1e-4,  # of norms after states, which divide by what may be near 0
}
SPACE: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8}
EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
}
GRANITE: dict[str, Any] = {
    "shared_intermediate_size": 40,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.3,
    "mamba_expand": 2,
}
FACTORS: dict[str, Any] = {
    "embedding_multiplier": 2.0,
    "lm_head_multiplier": 0.5,
    "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 0.8,
    "key_multiplier": 0.7,
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.6,
    "mlp_multipliers": [0.8, 1.3],
    "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
}
LFM2_LAYERS = ["conv", "conv", "full_attention", "conv"]
KIMI_LAYERS = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
KIMI: dict[str, Any] = {
    "linear_num_heads": 4,
    "linear_head_dim": 12,
    "kv_lora_rank": 20,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "rms_norm_eps": 1e-4,
}
FAMILIES = (
    *("qwen3_next", "qwen3_next_experts", "qwen3_5", "qwen3_5_experts", "olmo_hybrid"),
    *("lfm2", "lfm2_moe", "granite", "granite_experts", "nemotron_h"),
    *("nemotron_h_experts", "nemotron_h_latent"),
    *("falcon_h1", "falcon_h1_normed"),
    *(("kimi_linear",) if hasattr(transformers, "KimiLinearConfig") else ()),  # not in 5.0
)


def config_of(family: str, hidden: int = 32, vocab_size: int = VOCAB) -> PreTrainedConfig:
    """The config of a tiny model; heads of attention are hidden / 4 wide or twice that."""
    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    falcon = sizes | SPACE | {"num_hidden_layers": 2, "mamba_d_ssm": 64, "mamba_n_groups": 2}
    granite = sizes | SPACE | GRANITE | {"mamba_d_head": hidden // 2}
    wide = {"head_dim": hidden // 2}
    match family:
        case "qwen3_next":
            return Qwen3NextConfig(**sizes, **DELTA, **wide, num_experts=0)
        case "qwen3_next_experts":
            return Qwen3NextConfig(**sizes, **DELTA, **wide, **EXPERTS, mlp_only_layers=[1])
        case "qwen3_5":
            return Qwen3_5TextConfig(**sizes, **DELTA, **wide)
        case "qwen3_5_experts":
            del sizes["intermediate_size"]
            return Qwen3_5MoeTextConfig(**sizes, **DELTA, **wide, **EXPERTS)
        case "olmo_hybrid":
            return OlmoHybridConfig(**sizes, **DELTA, rope_parameters={"rope_theta": None})
        case "lfm2":
            return Lfm2Config(**sizes, layer_types=LFM2_LAYERS, block_multiple_of=16)
        case "lfm2_moe":
            own = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
            return Lfm2MoeConfig(**sizes, **own, layer_types=LFM2_LAYERS, num_dense_layers=1)
        case "granite":
            return GraniteMoeHybridConfig(**granite, num_local_experts=0, num_experts_per_tok=0)
        case "granite_experts":
            return GraniteMoeHybridConfig(**granite, num_local_experts=6, num_experts_per_tok=2)
        case "nemotron_h" | "nemotron_h_experts" | "nemotron_h_latent":
            del sizes["num_hidden_layers"]
            return NemotronHConfig(
                **sizes,
                hybrid_override_pattern="M-M*-" if family == "nemotron_h" else "MEM*E",
                n_routed_experts=6,
                n_group=2,
                topk_group=1,
                moe_intermediate_size=16,
                moe_shared_expert_intermediate_size=24,
                moe_latent_size=24 if family == "nemotron_h_latent" else None,
                routed_scaling_factor=2.5,
                head_dim=hidden // 4,
                mamba_num_heads=8,
                mamba_head_dim=8,
                ssm_state_size=16,
                n_groups=2,
                chunk_size=16,
                num_nextn_predict_layers=int(family == "nemotron_h_experts"),
                time_step_min=1e-30,  # transformers raises step sizes to it in its chunks alone
            )
        case "kimi_linear":
            latent: dict[str, Any] = {"num_key_value_heads": 4, "layer_types": KIMI_LAYERS}
            latent |= {"qk_nope_head_dim": hidden * 3 // 16, "qk_rope_head_dim": hidden // 16}
            latent |= {"v_head_dim": hidden // 8}
            return transformers.KimiLinearConfig(**sizes | KIMI | latent)
        case "falcon_h1":
            return FalconH1Config(**falcon, **FACTORS)
        case _:
            return FalconH1Config(**falcon, mamba_rms_norm=True, mamba_norm_before_gate=False)


def prompt(length: int, seed: int = 0) -> list[int]:
    """A prompt that begins as all of the same seed do."""
    drawn: list[int] = np.random.default_rng(seed).integers(0, VOCAB, length).tolist()
    return drawn


def repetitive(length: int) -> list[int]:
    """A prompt in which n-grams find what follows."""
    return (prompt(7, 3) * length)[:length]


def write_hybrid(config: PreTrainedConfig, folder: Path) -> Any:
    """Save a random float32 model of a config; returns transformers' own."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(_change(name, parameter, config.hidden_size))
        for name, buffer in model.named_buffers():
            if name.endswith(("expert_bias", "correction_bias")):  # zeros in a new model
                buffer.copy_(0.2 * torch.randn_like(buffer))
    model.save_pretrained(folder)
    if config.model_type == "olmo_hybrid":
        _cut_convolutions(folder, config)
    return model


def _cut_convolutions(folder: Path, config: PreTrainedConfig) -> None:
    """Cut the channels of convolutions as published checkpoints do, where transformers cuts
    thirds."""
    tensors = load_file(folder / "model.safetensors")
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    widths = [keys, keys, config.linear_num_value_heads * config.linear_value_head_dim]
    for name in [name for name in tensors if name.endswith("q_conv1d.weight")]:
        names = [name.replace("q_conv1d", f"{part}_conv1d") for part in "qkv"]
        whole = torch.cat([tensors[each] for each in names])
        for each, part in zip(names, torch.split(whole, widths), strict=True):
            tensors[each] = part.contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _change(name: str, parameter: torch.Tensor, hidden: int) -> torch.Tensor:
    """What is added to new weights, so that states and attention say something."""
    noise: torch.Tensor = torch.randn_like(parameter)
    if "conv" in name:
        return 0.4 * noise
    if parameter.dim() == 1:  # norms, decays, step sizes, biases
        return 0.2 * noise
    return noise * 0.1 * math.sqrt(32 / hidden)
