"""StableLM (arXiv 2402.17834)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.models.families.config import (
    decoder,
    lanes,
    mlp_sizes,
    refuse,
    rotations,
    silu,
    sizes,
    windows,
)
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.layer import SublayerSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import LayerNorm
from engine.models.layers.parallel import Parallel


def stablelm(config: Any) -> DecoderSpec:
    """LayerNorms in front of attention and MLP; some models have the two side by side."""
    refuse(config, "qk_layernorm")
    eps = config.layer_norm_eps
    norm = LayerNorm("input_layernorm", eps, has_bias=True)
    mlp_norm = LayerNorm("post_attention_layernorm", eps, has_bias=True)
    mlp = Mlp(**mlp_sizes(config) | {"has_bias": False}, activation=silu(config))
    layers: list[tuple[SublayerSpec, ...]] = []
    for rotation, window in zip(rotations(config), windows(config), strict=True):
        attention = Attention(
            **sizes(config),
            qkv_bias=config.use_qkv_bias,
            rotation=rotation,
            lane_order=lanes(config),
            window=window,
        )
        if config.use_parallel_residual:
            layers.append((Parallel(norm, attention, mlp),))
        else:
            layers.append((replace(attention, norm=norm), replace(mlp, norm=mlp_norm)))
    return decoder(config, layers, LayerNorm("model.norm", eps, has_bias=True))
