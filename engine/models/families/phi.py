"""Phi (arXiv 2309.05463), and Phi-3 (arXiv 2404.14219), whose layers Phi-4 has."""

from __future__ import annotations

from typing import Any

from engine.models.families.config import (
    activation,
    decoder,
    lanes,
    mlp_sizes,
    one_window,
    refuse,
    rotations,
    silu,
    sizes,
    windows,
)
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import LayerNorm, RmsNorm
from engine.models.layers.parallel import Parallel
from engine.models.layers.vocabulary import LmHead


def phi(config: Any) -> DecoderSpec:
    """Attention and an ungated MLP side by side, after one LayerNorm; all have biases."""
    refuse(config, "qk_layernorm")
    eps = config.layer_norm_eps
    mlp = Mlp(
        **mlp_sizes(config) | {"has_bias": True},
        gate_up=("fc1",),
        down="fc2",
        activation=activation(config, gated=False),
    )
    layers = [
        [
            Parallel(
                LayerNorm("input_layernorm", eps, has_bias=True),
                Attention(
                    **sizes(config),
                    qkv_bias=True,
                    o="dense",
                    o_bias=True,
                    rotation=rotation,
                    lane_order=lanes(config),
                    window=window,
                ),
                mlp,
            )
        ]
        for rotation, window in zip(rotations(config), windows(config), strict=True)
    ]
    return decoder(
        config,
        layers,
        LayerNorm("model.final_layernorm", eps, has_bias=True),
        lm_head=LmHead(is_tied=config.tie_word_embeddings, has_bias=True),
    )


def phi3(config: Any) -> DecoderSpec:
    """Llama's layers; queries, keys and values are packed, and so are gate and up."""
    eps = config.rms_norm_eps
    mlp = Mlp(
        **mlp_sizes(config) | {"has_bias": False},
        norm=RmsNorm("post_attention_layernorm", eps),
        gate_up=("gate_up_proj",),
        activation=silu(config),
    )
    layers = [
        (
            Attention(
                **sizes(config),
                norm=RmsNorm("input_layernorm", eps),
                qkv=("qkv_proj",),
                rotation=rotation,
                lane_order=lanes(config),
                window=window,
            ),
            mlp,
        )
        for rotation, window in zip(rotations(config), one_window(config), strict=True)
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps))
