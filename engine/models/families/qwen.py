"""Qwen2 (arXiv 2407.10671) and Qwen3 (arXiv 2505.09388), dense and with experts."""

from __future__ import annotations

from typing import Any

from engine.errors import ModelError
from engine.kernels.experts.routing import RoutingRules
from engine.models.families.config import (
    biases,
    decoder,
    mlp_sizes,
    one_window,
    silu,
    sizes,
    whole_heads,
    windows,
)
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.experts import ExpertMlp
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm, RmsNormPlusOne
from engine.models.layers.query_key import HeadNorm


def qwen3(config: Any) -> DecoderSpec:
    """NormSpec, attention whose queries and keys are normed by head, norm, and a gated MLP."""
    eps = config.rms_norm_eps
    layers = [
        (
            Attention(
                **sizes(config),
                **biases(config),
                norm=RmsNorm("input_layernorm", eps),
                name="self_attn",
                qkv=("q_proj", "k_proj", "v_proj"),
                qk_norm=HeadNorm(eps, "q_norm", "k_norm"),
                rotation=rotation,
                window=window,
                o="o_proj",
            ),
            Mlp(
                hidden_size=config.hidden_size,
                inner=config.intermediate_size,
                norm=RmsNorm("post_attention_layernorm", eps),
                name="mlp",
                gate_up=("gate_proj", "up_proj"),
                activation=silu(config),
                down="down_proj",
            ),
        )
        for rotation, window in zip(whole_heads(config), windows(config), strict=True)
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps))


def qwen3_moe(config: Any) -> DecoderSpec:
    """Qwen3's layers, with experts in place of most MLPs."""
    eps = config.rms_norm_eps
    layers = [
        (
            Attention(
                **sizes(config),
                **biases(config),
                norm=RmsNorm("input_layernorm", eps),
                qk_norm=HeadNorm(eps),
                rotation=rotation,
                window=window,
            ),
            experts_or_mlp(config, index),
        )
        for index, (rotation, window) in enumerate(
            zip(whole_heads(config), one_window(config), strict=True)
        )
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps))


def qwen2(config: Any) -> DecoderSpec:
    """Llama's layers, with biases of queries, keys and values."""
    return _qwen2(config, [mlp(config)] * config.num_hidden_layers)


def qwen2_moe(config: Any) -> DecoderSpec:
    """Qwen2's layers, with experts in place of most MLPs, one of which all tokens take."""
    return _qwen2(config, [experts_or_mlp(config, i) for i in range(config.num_hidden_layers)])


def _qwen2(config: Any, mlps: list[Mlp | ExpertMlp]) -> DecoderSpec:
    eps = config.rms_norm_eps
    layers = [
        (
            Attention(
                **sizes(config),
                norm=RmsNorm("input_layernorm", eps),
                qkv_bias=getattr(config, "qkv_bias", True),
                rotation=rotation,
                window=window,
            ),
            mlp,
        )
        for rotation, window, mlp in zip(whole_heads(config), windows(config), mlps, strict=True)
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps))


def mlp(config: Any, *, norm_plus_one: bool = False) -> Mlp:
    """The MLP of a layer without experts; its norm may be by 1 + weight."""
    norm_kind = RmsNormPlusOne if norm_plus_one else RmsNorm
    norm = norm_kind("post_attention_layernorm", config.rms_norm_eps)
    return Mlp(**mlp_sizes(config), norm=norm, activation=silu(config))


def experts_or_mlp(config: Any, index: int, *, norm_plus_one: bool = False) -> Mlp | ExpertMlp:
    """The experts of a layer; some layers have an MLP. Norms may be by 1 + weight."""
    plain = set(getattr(config, "mlp_only_layers", None) or ())
    step = getattr(config, "decoder_sparse_step", 1)
    if step < 1:
        raise ModelError(
            f"config.json: decoder_sparse_step must be at least 1, got {step}; 1 gives every layer "
            "experts"
        )
    is_plain = index in plain or (index + 1) % step
    if is_plain or not getattr(config, "num_experts", 0):
        return mlp(config, norm_plus_one=norm_plus_one)
    return experts(config, over_chosen=config.norm_topk_prob, norm_plus_one=norm_plus_one)


def experts(config: Any, *, over_chosen: bool, norm_plus_one: bool = False) -> ExpertMlp:
    """The experts of a Qwen-MoE or OLMoE layer; over_chosen: as of `RoutingRules`."""
    silu(config)  # the only activation of experts
    return ExpertMlp(
        hidden_size=config.hidden_size,
        norm_eps=config.rms_norm_eps,
        norm_plus_one=norm_plus_one,
        packed=("experts.gate_up_proj", "experts.down_proj"),
        num_experts=config.num_experts,
        rules=RoutingRules(config.num_experts_per_tok, over_chosen=over_chosen),
        inner=getattr(config, "moe_intermediate_size", None) or config.intermediate_size,
        shared_inner=getattr(config, "shared_expert_intermediate_size", 0),
    )
