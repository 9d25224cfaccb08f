"""Gemma (arXiv 2403.08295), Gemma 2 (arXiv 2408.00118) and the text of Gemma 3."""

from __future__ import annotations

from typing import Any

from engine.models.families.config import (
    activation,
    biases,
    decoder,
    lanes,
    mlp_sizes,
    rotations,
    sizes,
    windows,
)
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNormPlusOne
from engine.models.layers.query_key import HeadNorm, QueryKeyNorm
from engine.models.layers.residual import AddedOutput
from engine.models.layers.vocabulary import LmHead, TokenEmbedding


def gemma(config: Any) -> DecoderSpec:
    """Llama's layers, with norms by 1 + weight, and embeddings times a factor."""
    eps = config.rms_norm_eps
    mlp = Mlp(
        **mlp_sizes(config),
        norm=RmsNormPlusOne("post_attention_layernorm", eps),
        activation=activation(config),
    )
    layers = [
        (
            Attention(
                **sizes(config),
                **biases(config),
                norm=RmsNormPlusOne("input_layernorm", eps),
                rotation=rotation,
                lane_order=lanes(config),
                window=window,
            ),
            mlp,
        )
        for rotation, window in zip(rotations(config), windows(config), strict=True)
    ]
    final_norm = RmsNormPlusOne("model.norm", eps)
    return decoder(config, layers, final_norm, embedding=_embedding(config))


def gemma2(config: Any) -> DecoderSpec:
    """Norms in front and after, soft caps, and a sliding window in every other layer."""
    return _sandwich(config, None, config.attn_logit_softcapping)


def gemma3_text(config: Any) -> DecoderSpec:
    """Gemma 2's layers, with norms of every head in place of the cap of attention."""
    return _sandwich(config, HeadNorm(config.rms_norm_eps, plus_one=True), None)


def _sandwich(config: Any, qk_norm: QueryKeyNorm | None, softcap: float | None) -> DecoderSpec:
    eps = config.rms_norm_eps
    mlp = Mlp(
        **mlp_sizes(config),
        norm=RmsNormPlusOne("pre_feedforward_layernorm", eps),
        activation=activation(config),
        output=AddedOutput(RmsNormPlusOne("post_feedforward_layernorm", eps)),
    )
    layers = [
        (
            Attention(
                **sizes(config),
                **biases(config),
                norm=RmsNormPlusOne("input_layernorm", eps),
                qk_norm=qk_norm,
                rotation=rotation,
                lane_order=lanes(config),
                window=window,
                scale=config.query_pre_attn_scalar**-0.5,
                softcap=softcap,
                output=AddedOutput(RmsNormPlusOne("post_attention_layernorm", eps)),
            ),
            mlp,
        )
        for rotation, window in zip(rotations(config), windows(config), strict=True)
    ]
    softcap = config.final_logit_softcapping
    return decoder(
        config,
        layers,
        RmsNormPlusOne("model.norm", eps),
        embedding=_embedding(config),
        lm_head=LmHead(is_tied=config.tie_word_embeddings, softcap=softcap),
    )


def _embedding(config: Any) -> TokenEmbedding:
    return TokenEmbedding(scale=config.hidden_size**0.5, rounds_scale=True)
