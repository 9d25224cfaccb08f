"""Qwen3-Next and Qwen3.5 (3.6, 3.8): three gated delta rules to one attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.models.families.config import biases, decoder, lanes, layer_kinds, rotations, sizes
from engine.models.families.qwen import experts, experts_or_mlp, mlp
from engine.models.layers.decoder_spec import DecoderSpec, DraftingSpec
from engine.models.layers.gated_attention import GatedAttention
from engine.models.layers.layer import Layer, SublayerSpec
from engine.models.layers.norms import RmsNormPlusOne
from engine.models.layers.query_key import HeadNorm
from engine.models.layers.recurrent.gated_delta import GatedDelta
from engine.models.layers.rotation import RotationSpeeds

DELTA, ATTENTION = "linear_attention", "full_attention"
GROUPED = (("in_proj_qkvz", 4), ("in_proj_ba", 2))
"""The products of a delta rule in Qwen3-Next, whose outputs lie key head by key head."""


def qwen3_next(config: Any) -> DecoderSpec:
    """A delta rule or gated attention, and experts or an MLP, each after a norm by 1 + weight."""
    indices = range(config.num_hidden_layers)
    mlps = [experts_or_mlp(config, index, norm_plus_one=True) for index in indices]
    return _decoder(config, mlps, products=GROUPED, is_grouped=True)


def qwen3_5(config: Any) -> DecoderSpec:
    """Qwen3-Next's layers, with an MLP, and products that are not grouped.

    Its rotations have a section each for time, height and width, which are one position in a text:
    then they are those of one section. With experts all layers have them, whose weights sum to 1
    whatever `norm_topk_prob` says: what Qwen3-Next reads of them, transformers does not read here.
    """
    own: SublayerSpec
    if config.model_type == "qwen3_5_moe_text":
        own = experts(config, over_chosen=True, norm_plus_one=True)
    else:
        own = mlp(config, norm_plus_one=True)
    return _decoder(config, [own] * config.num_hidden_layers)


def _decoder(config: Any, mlps: Sequence[SublayerSpec], **products: Any) -> DecoderSpec:
    eps = config.rms_norm_eps
    speeds = rotations(config)
    layers = [
        (
            _delta(config, **products) if kind == DELTA else _attention(config, rotation),
            own,
        )
        for kind, rotation, own in zip(
            layer_kinds(config, DELTA, ATTENTION), speeds, mlps, strict=True
        )
    ]
    head = (_attention(config, speeds[0]), mlps[0])
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
