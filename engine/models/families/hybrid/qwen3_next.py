"""Qwen3-Next and Qwen3.5 (3.6, 3.8): three gated delta rules to one attention."""

from __future__ import annotations

from typing import Any

from engine.models.families.config import biases, decoder, lanes, layer_kinds, rotations, sizes
from engine.models.families.qwen import experts_or_mlp
from engine.models.layers.decoder_spec import DecoderSpec, DraftingSpec
from engine.models.layers.gated_attention import GatedAttention
from engine.models.layers.layer import Layer
from engine.models.layers.norms import RmsNormPlusOne
from engine.models.layers.query_key import HeadNorm
from engine.models.layers.recurrent.gated_delta import GatedDelta
from engine.models.layers.rotation import RotationSpeeds

DELTA, ATTENTION = "linear_attention", "full_attention"
GROUPED = (("in_proj_qkvz", 4), ("in_proj_ba", 2))
"""The products of a delta rule in Qwen3-Next, whose outputs lie key head by key head."""


def qwen3_next(config: Any) -> DecoderSpec:
    """A delta rule or gated attention, and experts or an MLP, each after a norm by 1 + weight."""
    return _decoder(config, products=GROUPED, is_grouped=True)


def qwen3_5(config: Any) -> DecoderSpec:
    """Qwen3-Next's layers, with an MLP, and products that are not grouped.

    Its rotations have a section each for time, height and width, which are one position in a text:
    then they are those of one section.
    """
    return _decoder(config)


def _decoder(config: Any, **products: Any) -> DecoderSpec:
    eps = config.rms_norm_eps
    speeds = rotations(config)
    layers = [
        (
            _delta(config, **products) if kind == DELTA else _attention(config, rotation),
            experts_or_mlp(config, index, norm_plus_one=True),
        )
        for index, (kind, rotation) in enumerate(
            zip(layer_kinds(config, DELTA, ATTENTION), speeds, strict=True)
        )
    ]
    head = (_attention(config, speeds[0]), experts_or_mlp(config, 0, norm_plus_one=True))
    return decoder(
        config,
        layers,
        RmsNormPlusOne("model.norm", eps),
        drafting=DraftingSpec(
            embedding_norm=RmsNormPlusOne("mtp.pre_fc_norm_embedding", eps),
            hidden_norm=RmsNormPlusOne("mtp.pre_fc_norm_hidden", eps),
            fuse="mtp.fc",
            layers=[Layer("mtp.layers.0", head)],
            final_norm=RmsNormPlusOne("mtp.norm", eps),
        ),
        renamed=[("model.language_model.", "model.")],
        unread=("mtp.", "model.visual."),
    )


def _delta(config: Any, **products: Any) -> GatedDelta:
    return GatedDelta(
        hidden_size=config.hidden_size,
        norm=RmsNormPlusOne("input_layernorm", config.rms_norm_eps),
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        conv_width=config.linear_conv_kernel_dim,
        eps=config.rms_norm_eps,
        **products,
    )


def _attention(config: Any, rotation: RotationSpeeds) -> GatedAttention:
    return GatedAttention(
        **sizes(config),
        **biases(config),
        norm=RmsNormPlusOne("input_layernorm", config.rms_norm_eps),
        qk_norm=HeadNorm(config.rms_norm_eps, plus_one=True),
        rotation=rotation,
        lane_order=lanes(config),
    )
