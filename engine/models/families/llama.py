"""Llama (arXiv 2302.13971) and SmolLM3."""

from __future__ import annotations

from typing import Any

from engine.models.families.config import (
    biases,
    decoder,
    head_dim,
    lanes,
    mlp_sizes,
    rotations,
    silu,
    sizes,
    whole_heads,
    windows,
)
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm
from engine.models.layers.rotation import RotationSpeeds, no_rotation


def llama(config: Any) -> DecoderSpec:
    """A norm, attention with rotated heads, a norm, and an MLP gated by SiLU."""
    return _decoder(config, whole_heads(config), windows(config))


def smollm3(config: Any) -> DecoderSpec:
    """Llama's layers; some of them do not rotate."""
    unrotated = no_rotation(head_dim(config))
    rotates = getattr(config, "no_rope_layers", None) or [1] * config.num_hidden_layers
    pairs = zip(rotations(config), rotates, strict=False)
    own = [rotation if does else unrotated for rotation, does in pairs]
    return _decoder(config, own, windows(config))


def _decoder(
    config: Any, rotations: list[RotationSpeeds], windows: list[int | None]
) -> DecoderSpec:
    eps = config.rms_norm_eps
    mlp = Mlp(
        **mlp_sizes(config),
        norm=RmsNorm("post_attention_layernorm", eps),
        gate_up=("gate_proj", "up_proj"),
        down="down_proj",
        activation=silu(config),
    )
    layers = [
        (
            Attention(
                **sizes(config),
                **biases(config),
                norm=RmsNorm("input_layernorm", eps),
                qkv=("q_proj", "k_proj", "v_proj"),
                o="o_proj",
                rotation=rotation,
                lane_order=lanes(config),
                window=window,
            ),
            mlp,
        )
        for rotation, window in zip(rotations, windows, strict=True)
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps))
