"""A tiny gpt-oss whose experts are in mxfp4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as hf
from safetensors.torch import load_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.engine.models.formats.packers import Tensors, rewrite
from tests.engine.models.serving import SIZES, write_tiny

CONFIG = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
MODEL = hf.GptOssConfig(
    **{**SIZES, "hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 2},
    head_dim=16,
    num_local_experts=5,
    num_experts_per_tok=2,
    layer_types=["sliding_attention", "full_attention"],
    sliding_window=11,
    rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
)


def random_mxfp4(num_experts: int, channels: int, width: int) -> Tensors:
    """Blocks and scales; values are near 0.2, as the other weights are."""
    shape = (num_experts, channels, width // 32)
    return {
        "_blocks": torch.randint(0, 256, (*shape, 16), dtype=torch.uint8),
        "_scales": torch.randint(122, 125, shape, dtype=torch.uint8),
    }


def write_gpt_oss(folder: Path, config: hf.PreTrainedConfig = MODEL) -> Any:
    """Write the checkpoint; returns transformers' model with the dequantised experts."""
    reference = write_tiny(config, folder)
    tensors = load_file(folder / "model.safetensors")
    for index, layer in enumerate(reference.model.layers):
        for part in ("gate_up_proj", "down_proj"):
            name = f"model.layers.{index}.mlp.experts.{part}"
            num_experts, width, channels = tensors.pop(name).shape
            stored = random_mxfp4(num_experts, channels, width)
            tensors |= {f"{name}{key}": tensor for key, tensor in stored.items()}
            wide = convert_moe_packed_tensors(
                stored["_blocks"], stored["_scales"], dtype=torch.float32
            )
            getattr(layer.mlp.experts, part).data.copy_(wide)
    rewrite(folder, tensors, CONFIG)
    return reference
