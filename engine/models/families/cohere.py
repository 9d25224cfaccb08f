"""Cohere's Command R and its successor, as `cohere2`."""

from __future__ import annotations

from typing import Any

from engine.models.families.config import (
    biases,
    decoder,
    head_dim,
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
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import LayerNorm
from engine.models.layers.parallel import Parallel
from engine.models.layers.rotation import RotationSpeeds, no_rotation
from engine.models.layers.vocabulary import LmHead


def cohere(config: Any) -> DecoderSpec:
    """Attention and MLP side by side, after one LayerNorm without bias."""
    refuse(config, "use_qk_norm")
    return _decoder(config, rotations(config))


def cohere2(config: Any) -> DecoderSpec:
    """Cohere's layers; those that see all keys do not rotate."""
    unrotated = no_rotation(head_dim(config))
    pairs = zip(rotations(config), config.layer_types, strict=False)
    return _decoder(
        config, [own if kind == "sliding_attention" else unrotated for own, kind in pairs]
    )


def _decoder(config: Any, rotations: list[RotationSpeeds]) -> DecoderSpec:
    mlp = Mlp(**mlp_sizes(config), activation=silu(config))
    layers = [
        [
            Parallel(
                LayerNorm("input_layernorm", config.layer_norm_eps),
                Attention(
                    **sizes(config),
                    **biases(config),
                    rotation=rotation,
                    lane_order=lanes(config, interleaved=True),
                    window=window,
                ),
                mlp,
            )
        ]
        for rotation, window in zip(rotations, windows(config), strict=True)
    ]
    return decoder(
        config,
        layers,
        LayerNorm("model.norm", config.layer_norm_eps),
        lm_head=LmHead(is_tied=config.tie_word_embeddings, scale=config.logit_scale),
    )
