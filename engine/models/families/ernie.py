"""ERNIE 4.5, dense and with experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.kernels.experts.routing import RoutingRules
from engine.models.families.config import (
    NotFusedError,
    decoder,
    lanes,
    mlp_sizes,
    refuse,
    rotations,
    silu,
    sizes,
)
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.experts import ExpertMlp
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm

LEAST_SUM = 1e-6
"""What no sum of chosen probabilities comes near: a bound of it that is smaller changes nothing."""


def ernie4_5(config: Any) -> DecoderSpec:
    """Llama's layers; lanes are rotated in pairs of neighbors."""
    return _decoder(config, [_mlp(config)] * config.num_hidden_layers)


def ernie4_5_moe(config: Any) -> DecoderSpec:
    """ERNIE's layers, with experts in place of some MLPs; corrected probabilities choose them."""
    refuse(config, "use_bias")
    if (config.moe_norm_min or 0.0) > LEAST_SUM:
        raise NotFusedError(f"moe_norm_min {config.moe_norm_min}")
    first, last = config.moe_layer_start_index, config.moe_layer_end_index
    mlps = [
        _experts(config)
        if (index + 1) % config.moe_layer_interval == 0 and first <= index <= last
        else _mlp(config)
        for index in range(config.num_hidden_layers)
    ]
    return _decoder(config, mlps)


def _decoder(config: Any, mlps: Sequence[Mlp | ExpertMlp]) -> DecoderSpec:
    eps = config.rms_norm_eps
    layers = [
        (
            Attention(
                **sizes(config),
                norm=RmsNorm("input_layernorm", eps),
                qkv_bias=config.use_bias,
                o_bias=config.use_bias,
                rotation=rotation,
                lane_order=lanes(config, interleaved=True),
            ),
            mlp,
        )
        for rotation, mlp in zip(rotations(config), mlps, strict=True)
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps), unread=("model.mtp_",))


def _mlp(config: Any) -> Mlp:
    norm = RmsNorm("post_attention_layernorm", config.rms_norm_eps)
    own = mlp_sizes(config) | {"has_bias": config.use_bias}
    return Mlp(**own, norm=norm, activation=silu(config))


def _experts(config: Any) -> ExpertMlp:
    silu(config)  # the only activation of experts
    return ExpertMlp(
        hidden_size=config.hidden_size,
        norm_eps=config.rms_norm_eps,
        num_experts=config.num_experts,
        rules=RoutingRules(config.num_experts_per_tok, over_chosen=True),
        correction="moe_statics.e_score_correction_bias",
        inner=config.moe_intermediate_size,
        shared_inner=config.moe_intermediate_size * config.moe_num_shared_experts,
        shared_name="shared_experts",
        shared_gate=False,
    )
