"""GLM-4 (arXiv 2406.12793), as `glm`, GLM-4-0414, as `glm4`, and GLM-4.7-Flash."""

from __future__ import annotations

from typing import Any

from engine.models.families.config import decoder, lanes, mlp_sizes, rotations, silu, sizes, windows
from engine.models.families.deepseek import by_scores, latent_decoder, next_layer
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm
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
