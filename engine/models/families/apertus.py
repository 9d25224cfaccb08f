"""Apertus (arXiv 2509.14233)."""

from __future__ import annotations

from typing import Any

from engine.models.families.config import (
    NotFusedError,
    biases,
    decoder,
    mlp_sizes,
    sizes,
    whole_heads,
)
from engine.models.layers.activation import Xielu
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm
from engine.models.layers.query_key import HeadNorm


def apertus(config: Any) -> DecoderSpec:
    """Attention whose queries and keys are normed by head, and an MLP without a gate."""
    if config.hidden_act != "xielu":
        raise NotFusedError(f"hidden_act {config.hidden_act!r}")
    eps = config.rms_norm_eps
    layers = [
        (
            Attention(
                **sizes(config),
                **biases(config),
                norm=RmsNorm("attention_layernorm", eps),
                qk_norm=HeadNorm(eps),
                rotation=rotation,
            ),
            Mlp(
                **mlp_sizes(config),
                norm=RmsNorm("feedforward_layernorm", eps),
                gate_up=("up_proj",),
                activation=Xielu("act_fn"),
            ),
        )
        for rotation in whole_heads(config)
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps))
