"""Mistral (arXiv 2310.06825), Ministral 3 (arXiv 2601.08584), Mistral 4, and their texts alone."""

from __future__ import annotations

from typing import Any

from engine.errors import ModelError
from engine.kernels.experts.routing import RoutingRules
from engine.models.families.config import (
    NotFusedError,
    decoder,
    mlp_sizes,
    one_window,
    rotations,
    silu,
    sizes,
    whole_heads,
)
from engine.models.families.deepseek import first_dense, latent_decoder
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm
from engine.models.layers.query_key import QueryGrowth

WITH_IMAGES: dict[str, Any] = {
    "renamed": [
        ("model.language_model.", "model."),
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
    ],
    "unread": (
        *("vision_tower.", "multi_modal_projector."),
        *("model.vision_tower.", "model.multi_modal_projector."),
    ),
}
"""How the names of tensors differ in checkpoints that take images too."""


def mistral(config: Any) -> DecoderSpec:
    """Llama's layers, all with one sliding window."""
    whole_heads(config)  # refuses partial rotations
    return _decoder(config, None)


def ministral3(config: Any) -> DecoderSpec:
    """Mistral's layers; queries grow with their positions."""
    return _decoder(config, _growth(config))


def mistral4(config: Any) -> DecoderSpec:
    """DeepSeek's layers; experts are chosen by softmax, and queries grow with their positions."""
    if config.n_group not in (None, 1):
        raise NotFusedError(f"n_group {config.n_group}")
    rules = RoutingRules(
        config.num_experts_per_tok,
        over_chosen=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
    )
    return latent_decoder(config, rules, first_dense(config), _growth(config), **WITH_IMAGES)


TEXTS = {"mistral": mistral, "ministral3": ministral3, "mistral4": mistral4}
"""What describes the text of a checkpoint that takes images too, by its `model_type`."""


def mistral3(config: Any) -> DecoderSpec:
    """The text of a model that takes images too."""
    if config.model_type not in TEXTS:
        raise ModelError(
            f"config.json: text_config has model_type {config.model_type!r}, which is not served; "
            f"those of mistral3 are {', '.join(TEXTS)}"
        )
    return TEXTS[config.model_type](config)


def _decoder(config: Any, growth: QueryGrowth | None) -> DecoderSpec:
    eps = config.rms_norm_eps
    layers = [
        (
            Attention(
                **sizes(config),
                norm=RmsNorm("input_layernorm", eps),
                rotation=rotation,
                growth=growth,
                window=window,
            ),
            Mlp(
                **mlp_sizes(config),
                norm=RmsNorm("post_attention_layernorm", eps),
                activation=silu(config),
            ),
        )
        for rotation, window in zip(rotations(config), one_window(config), strict=True)
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps), **WITH_IMAGES)


def _growth(config: Any) -> QueryGrowth | None:
    rope = config.rope_parameters
    beta = rope.get("llama_4_scaling_beta")
    return QueryGrowth(beta, rope["original_max_position_embeddings"]) if beta else None
