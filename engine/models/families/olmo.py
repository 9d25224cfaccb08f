"""OLMo 2 (arXiv 2501.00656), OLMo 3, and OLMoE (arXiv 2409.02060)."""

from __future__ import annotations

from typing import Any

from engine.models.families.config import (
    biases,
    decoder,
    lanes,
    mlp_sizes,
    rotations,
    silu,
    sizes,
    whole_heads,
    windows,
)
from engine.models.families.qwen import experts
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm
from engine.models.layers.query_key import WholeNorm
from engine.models.layers.residual import AddedOutput


def olmo2(config: Any) -> DecoderSpec:
    """Norms after attention and MLP, before the sum, and none in front; OLMo 3 is alike."""
    eps = config.rms_norm_eps
    mlp = Mlp(
        **mlp_sizes(config),
        activation=silu(config),
        output=AddedOutput(RmsNorm("post_feedforward_layernorm", eps)),
    )
    layers = [
        (
            Attention(
                **sizes(config),
                **biases(config),
                qk_norm=WholeNorm(eps),
                rotation=rotation,
                lane_order=lanes(config),
                window=window,
                output=AddedOutput(RmsNorm("post_attention_layernorm", eps)),
            ),
            mlp,
        )
        for rotation, window in zip(rotations(config), windows(config), strict=True)
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps))


def olmoe(config: Any) -> DecoderSpec:
    """Attention whose queries and keys are normed over all heads, and experts."""
    eps = config.rms_norm_eps
    layers = [
        (
            Attention(
                **sizes(config),
                **biases(config),
                norm=RmsNorm("input_layernorm", eps),
                qk_norm=WholeNorm(eps),
                clip=config.clip_qkv,
                rotation=rotation,
                window=window,
            ),
            experts(config, over_chosen=config.norm_topk_prob),
        )
        for rotation, window in zip(whole_heads(config), windows(config), strict=True)
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps))
