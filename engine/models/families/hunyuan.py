"""HunYuan (arXiv 2411.02265), dense and with experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.kernels.experts.routing import RoutingRules
from engine.models.families.config import biases, decoder, mlp_sizes, silu, sizes, whole_heads
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.experts import ExpertMlp
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm
from engine.models.layers.rotated_norms import RotatedNormAttention


def hunyuan_v1_dense(config: Any) -> DecoderSpec:
    """Llama's layers; queries and keys are normed by head after they are rotated."""
    mlp = Mlp(
        **mlp_sizes(config) | {"has_bias": False},
        norm=RmsNorm("post_attention_layernorm", config.rms_norm_eps),
        activation=silu(config),
    )
    return _decoder(config, [mlp] * config.num_hidden_layers)


def hunyuan_v1_moe(config: Any) -> DecoderSpec:
    """The same with experts, as many of which a token takes as the layer says."""
    return _decoder(config, [_experts(config, i) for i in range(config.num_hidden_layers)])


def _decoder(config: Any, mlps: Sequence[Mlp | ExpertMlp]) -> DecoderSpec:
    eps = config.rms_norm_eps
    layers = [
        (
            RotatedNormAttention(
                **sizes(config),
                **biases(config),
                norm=RmsNorm("input_layernorm", eps),
                rotation=rotation,
                eps=eps,
            ),
            mlp,
        )
        for rotation, mlp in zip(whole_heads(config), mlps, strict=True)
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps))


def _experts(config: Any, index: int) -> ExpertMlp:
    silu(config)  # the only activation of experts
    return ExpertMlp(
        hidden_size=config.hidden_size,
        norm_eps=config.rms_norm_eps,
        num_experts=_of_layer(config.num_experts, index),
        rules=RoutingRules(_of_layer(config.moe_topk, index), over_chosen=True),
        inner=config.intermediate_size,
        router="gate.wg",
        shared_inner=config.intermediate_size,
        shared_name="shared_mlp",
        shared_gate=False,
    )


def _of_layer(value: int | Sequence[int], index: int) -> int:
    """A number that all layers share, or the layer's own."""
    return value if isinstance(value, int) else value[index]
