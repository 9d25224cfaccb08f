"""GLM-4 (arXiv 2406.12793), as `glm`, GLM-4-0414, as `glm4`, GLM-4.5 and GLM-4.7-Flash."""

from __future__ import annotations

from typing import Any

from engine.models.families.config import decoder, lanes, mlp_sizes, rotations, silu, sizes, windows
from engine.models.families.deepseek import (
    by_scores,
    first_dense,
    latent_decoder,
    next_layer,
    routed_experts,
)
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm
from engine.models.layers.query_key import HeadNorm
from engine.models.layers.residual import AddedOutput


def glm(config: Any) -> DecoderSpec:
    """Llama's layers; lanes are rotated in pairs of neighbors, gate and up are packed."""
    return _decoder(config, AddedOutput(), AddedOutput())


def glm4(config: Any) -> DecoderSpec:
    """GLM's layers, with norms after attention and MLP too."""
    eps = config.rms_norm_eps
    return _decoder(
        config,
        AddedOutput(RmsNorm("post_self_attn_layernorm", eps)),
        AddedOutput(RmsNorm("post_mlp_layernorm", eps)),
    )


def glm4_moe_lite(config: Any) -> DecoderSpec:
    """DeepSeek-V3's layers; which of them have experts is listed."""
    is_dense = [kind == "dense" for kind in config.mlp_layer_types]
    rules = by_scores(config)
    return latent_decoder(config, rules, is_dense, drafting=next_layer(config, rules))


def glm4_moe(config: Any) -> DecoderSpec:
    """GLM-4.5: attention, half of whose lanes rotate, and DeepSeek-V3's experts but for the first
    layers."""
    eps, rules = config.rms_norm_eps, by_scores(config)
    attentions = [
        Attention(
            **sizes(config),
            norm=RmsNorm("input_layernorm", eps),
            qkv_bias=config.attention_bias,
            qk_norm=HeadNorm(eps) if config.use_qk_norm else None,
            rotation=rotation,
            lane_order=lanes(config),
        )
        for rotation in rotations(config)
    ]
    mlp = Mlp(
        **mlp_sizes(config) | {"has_bias": False},
        norm=RmsNorm("post_attention_layernorm", eps),
        activation=silu(config),
    )
    experts = routed_experts(config, rules)
    layers = [
        (attention, mlp if is_dense else experts)
        for attention, is_dense in zip(attentions, first_dense(config), strict=True)
    ]
    drafting = next_layer(config, rules, attentions[0])
    return decoder(config, layers, RmsNorm("model.norm", eps), drafting=drafting)


def _decoder(config: Any, after_attention: AddedOutput, after_mlp: AddedOutput) -> DecoderSpec:
    eps = config.rms_norm_eps
    mlp = Mlp(
        **mlp_sizes(config) | {"has_bias": False},
        norm=RmsNorm("post_attention_layernorm", eps),
        gate_up=("gate_up_proj",),
        activation=silu(config),
        output=after_mlp,
    )
    layers = [
        (
            Attention(
                **sizes(config),
                norm=RmsNorm("input_layernorm", eps),
                qkv_bias=config.attention_bias,
                rotation=rotation,
                lane_order=lanes(config, interleaved=True),
                window=window,
                output=after_attention,
            ),
            mlp,
        )
        for rotation, window in zip(rotations(config), windows(config), strict=True)
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps))
