"""StarCoder2 (arXiv 2402.19173)."""

from __future__ import annotations

from typing import Any

from engine.models.families.config import (
    activation,
    decoder,
    lanes,
    mlp_sizes,
    one_window,
    rotations,
    sizes,
)
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import LayerNorm


def starcoder2(config: Any) -> DecoderSpec:
    """LayerNorms, attention, and an ungated MLP."""
    eps, bias = config.norm_epsilon, config.use_bias
    mlp = Mlp(
        **mlp_sizes(config) | {"has_bias": bias},
        norm=LayerNorm("post_attention_layernorm", eps, has_bias=True),
        gate_up=("c_fc",),
        down="c_proj",
        activation=activation(config, gated=False),
    )
    layers = [
        (
            Attention(
                **sizes(config),
                norm=LayerNorm("input_layernorm", eps, has_bias=True),
                qkv_bias=bias,
                o_bias=bias,
                rotation=rotation,
                lane_order=lanes(config),
                window=window,
            ),
            mlp,
        )
        for rotation, window in zip(rotations(config), one_window(config), strict=True)
    ]
    return decoder(config, layers, LayerNorm("model.norm", eps, has_bias=True))
