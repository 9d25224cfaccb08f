"""DeepSeek-V2 (arXiv 2405.04434) and V3 (arXiv 2412.19437)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from engine.kernels.experts.routing import RoutingRules
from engine.models.families.config import NotFusedError, decoder, mlp_sizes, refuse, rotations, silu
from engine.models.layers.decoder_spec import DecoderSpec, DraftingSpec
from engine.models.layers.experts import ExpertMlp
from engine.models.layers.latent_attention import LatentAttention
from engine.models.layers.layer import Layer, SublayerSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm
from engine.models.layers.query_key import QueryGrowth

GREEDY, BY_GROUP = "greedy", "group_limited_greedy"
"""V2's methods of choosing experts."""
CORRECTION = "gate.e_score_correction_bias"


def deepseek_v2(config: Any) -> DecoderSpec:
    """Latent attention, and experts but for the first layers.

    `norm_topk_prob` is not read in transformers either: weights are probabilities over all experts.
    """
    if config.topk_method not in (GREEDY, BY_GROUP):
        raise NotFusedError(f"topk_method {config.topk_method!r}")
    rules = RoutingRules(
        config.num_experts_per_tok or 0, over_chosen=False, scale=config.routed_scaling_factor
    )
    if config.topk_method == BY_GROUP:
        rules = _by_group(config, rules)
    return latent_decoder(config, rules, first_dense(config))


def deepseek_v3(config: Any) -> DecoderSpec:
    """V2's layers; experts are chosen by sigmoid scores with corrections."""
    rules = by_scores(config)
    return latent_decoder(config, rules, first_dense(config), drafting=next_layer(config, rules))


def next_layer(
    config: Any, rules: RoutingRules, attention: SublayerSpec | None = None
) -> DraftingSpec:
    """The head that drafts further tokens: in checkpoints it is a layer after the last.

    Its embedding and LM head are there once more; those of the target are the same.

    Args:
        attention: of the layer; None is latent attention.
    """
    name, eps = f"model.layers.{config.num_hidden_layers}", config.rms_norm_eps
    attention = attention or _attentions(config, None)[0]
    return DraftingSpec(
        embedding_norm=RmsNorm(f"{name}.enorm", eps),
        hidden_norm=RmsNorm(f"{name}.hnorm", eps),
        fuse=f"{name}.eh_proj",
        layers=[Layer(name, (attention, routed_experts(config, rules)))],
        final_norm=RmsNorm(f"{name}.shared_head.norm", eps),
    )


def by_scores(config: Any) -> RoutingRules:
    """V3's rules."""
    rules = RoutingRules(
        config.num_experts_per_tok or 0,
        over_chosen=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
        sigmoid=True,
    )
    return _by_group(config, rules)


def _by_group(config: Any, rules: RoutingRules) -> RoutingRules:
    return rules._replace(num_groups=config.n_group, top_groups=config.topk_group)


def latent_decoder(
    config: Any,
    rules: RoutingRules,
    is_dense: Sequence[bool],
    growth: QueryGrowth | None = None,
    **checkpoint: Any,
) -> DecoderSpec:
    """Latent attention, and experts or an MLP, each after a norm.

    Args:
        is_dense: whether a layer has an MLP. checkpoint: as of `decoder`.
    """
    eps = config.rms_norm_eps
    refuse(config, "attention_bias", "mlp_bias")
    mlp = Mlp(
        **mlp_sizes(config),
        norm=RmsNorm("post_attention_layernorm", eps),
        activation=silu(config),
    )
    layers = [
        (attention, mlp if dense else routed_experts(config, rules))
        for attention, dense in zip(_attentions(config, growth), is_dense, strict=True)
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps), **checkpoint)


def first_dense(config: Any) -> list[bool]:
    """Which layers have an MLP: the first ones."""
    first = config.first_k_dense_replace
    return [index < first for index in range(config.num_hidden_layers)]


def _attentions(config: Any, growth: QueryGrowth | None) -> list[LatentAttention]:
    """The attention of each layer."""
    head_dim = key_lanes(config)
    return [
        LatentAttention(
            hidden_size=config.hidden_size,
            num_heads=config.num_attention_heads,
            norm=RmsNorm("input_layernorm", config.rms_norm_eps),
            rotation=rotation,
            scale=_scale(config, head_dim),
            q_rank=config.q_lora_rank,
            kv_rank=config.kv_lora_rank,
            nope=config.qk_nope_head_dim,
            rope=config.qk_rope_head_dim,
            value=config.v_head_dim,
            interleaved=getattr(config, "rope_interleave", True),
            growth=growth,
        )
        for rotation in rotations(config, head_dim)
    ]


def key_lanes(config: Any) -> int:
    """Lanes of a head's key; values, which lie in a cache of keys, have no more of them."""
    lanes: int = config.qk_nope_head_dim + config.qk_rope_head_dim
    if config.v_head_dim > lanes:
        raise NotFusedError(f"v_head_dim {config.v_head_dim} above the {lanes} of keys")
    return lanes


def _scale(config: Any, head_dim: int) -> float:
    scale: float = head_dim**-0.5
    rope = config.rope_parameters
    if rope["rope_type"] != "default" and (all_dim := rope.get("mscale_all_dim", 0)):
        scale *= (0.1 * all_dim * math.log(max(rope["factor"], 1.0)) + 1.0) ** 2
    return scale


def routed_experts(config: Any, rules: RoutingRules) -> ExpertMlp:
    """The experts of a layer, and the one that all tokens take."""
    return ExpertMlp(
        hidden_size=config.hidden_size,
        norm_eps=config.rms_norm_eps,
        packed=("experts.gate_up_proj", "experts.down_proj"),
        num_experts=config.n_routed_experts,
        rules=rules,
        inner=config.moe_intermediate_size,
        shared_inner=config.moe_intermediate_size * config.n_shared_experts,
        shared_name="shared_experts",
        shared_gate=False,
        correction=CORRECTION if rules.sigmoid else None,
    )
