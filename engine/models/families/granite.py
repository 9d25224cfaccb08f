"""Granite (arXiv 2405.04324 and its successors)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.models.families.config import (
    biases,
    decoder,
    lanes,
    mlp_sizes,
    rotations,
    silu,
    sizes,
    windows,
)
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.layer import SublayerSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm
from engine.models.layers.residual import AddedOutput
from engine.models.layers.vocabulary import LmHead, TokenEmbedding


def granite(config: Any) -> DecoderSpec:
    """Llama's layers, with factors of embeddings, scores, what is added, and logits."""
    eps, output = config.rms_norm_eps, AddedOutput(scale=config.residual_multiplier)
    mlp = Mlp(
        **mlp_sizes(config),
        norm=RmsNorm("post_attention_layernorm", eps),
        activation=silu(config),
        output=output,
    )
    layers = [
        (
            Attention(
                **sizes(config),
                **biases(config),
                norm=RmsNorm("input_layernorm", eps),
                rotation=rotation,
                lane_order=lanes(config),
                window=window,
                scale=config.attention_multiplier,
                output=output,
            ),
            mlp,
        )
        for rotation, window in zip(rotations(config), windows(config), strict=True)
    ]
    return granite_decoder(config, layers)


def granite_decoder(config: Any, layers: Iterable[Iterable[SublayerSpec]]) -> DecoderSpec:
    """The decoder of some layers, with the factors of embeddings and logits."""
    return decoder(
        config,
        layers,
        RmsNorm("model.norm", config.rms_norm_eps),
        embedding=TokenEmbedding(scale=config.embedding_multiplier),
        lm_head=LmHead(is_tied=config.tie_word_embeddings, scale=1.0 / config.logits_scaling),
    )
