"""LFM2 (arXiv 2511.23404), dense and with experts: short convolutions, and some attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.kernels.experts.routing import RoutingRules
from engine.models.families.config import decoder, layer_kinds, sizes, whole_heads
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.experts import ExpertMlp
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm
from engine.models.layers.query_key import HeadNorm
from engine.models.layers.recurrent.short_convolution import ShortConvolution


def lfm2(config: Any) -> DecoderSpec:
    """A short convolution or attention, and a gated MLP, each after a norm."""
    return _decoder(config, [_mlp(config, _inner(config))] * config.num_hidden_layers)


def lfm2_moe(config: Any) -> DecoderSpec:
    """LFM2's layers, with experts in place of the MLP after the first of them."""
    dense = _mlp(config, config.intermediate_size)
    return _decoder(
        config,
        [
            dense if index < config.num_dense_layers else _experts(config)
            for index in range(config.num_hidden_layers)
        ],
    )


def _decoder(config: Any, mlps: Sequence[Mlp | ExpertMlp]) -> DecoderSpec:
    eps = config.norm_eps
    convolution = ShortConvolution(
        hidden_size=config.hidden_size,
        width=config.conv_L_cache,
        norm=RmsNorm("operator_norm", eps),
        has_bias=config.conv_bias,
    )
    layers = [
        (
            convolution
            if kind == "conv"
            else Attention(
                **sizes(config),
                norm=RmsNorm("operator_norm", eps),
                qk_norm=HeadNorm(eps, "q_layernorm", "k_layernorm"),
                rotation=rotation,
                o="out_proj",
            ),
            mlp,
        )
        for kind, rotation, mlp in zip(
            layer_kinds(config, "conv", "full_attention"), whole_heads(config), mlps, strict=True
        )
    ]
    return decoder(config, layers, RmsNorm("model.embedding_norm", eps))


def _mlp(config: Any, inner: int) -> Mlp:
    return Mlp(
        hidden_size=config.hidden_size,
        inner=inner,
        norm=RmsNorm("ffn_norm", config.norm_eps),
        name="feed_forward",
        gate_up=("w1", "w3"),
        down="w2",
    )


def _experts(config: Any) -> ExpertMlp:
    return ExpertMlp(
        hidden_size=config.hidden_size,
        norm="ffn_norm",
        norm_eps=config.norm_eps,
        name="feed_forward",
        names=("w1", "w3", "w2"),
        num_experts=config.num_experts,
        inner=config.moe_intermediate_size,
        rules=RoutingRules(
            config.num_experts_per_tok,
            over_chosen=config.norm_topk_prob,
            scale=config.routed_scaling_factor,
            sigmoid=True,
        ),
        correction="expert_bias" if config.use_expert_bias else None,
    )


def _inner(config: Any) -> int:
    """The size between the products: two thirds, times a factor, rounded up to a multiple."""
    inner: int = config.intermediate_size
    if not config.block_auto_adjust_ff_dim:
        return inner
    inner = int(2 * inner / 3)
    if config.block_ffn_dim_multiplier is None:
        return inner
    inner = int(config.block_ffn_dim_multiplier * inner)
    multiple: int = config.block_multiple_of
    return -(-inner // multiple) * multiple
