"""Kimi Linear (arXiv 2510.26692): three delta rules by channel to one latent attention."""

from __future__ import annotations

from typing import Any

from engine.models.families.config import decoder, layer_kinds, mlp_sizes, refuse, silu
from engine.models.families.deepseek import CORRECTION, by_scores, key_lanes
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.experts import ExpertMlp
from engine.models.layers.latent_attention import LatentAttention
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm
from engine.models.layers.recurrent.channel_delta import ChannelDelta
from engine.models.layers.rotation import no_rotation

DELTA, ATTENTION = "linear_attention", "full_attention"


def kimi_linear(config: Any) -> DecoderSpec:
    """A delta rule or attention without rotations, and experts or an MLP, each after a norm."""
    refuse(config, "attention_bias")
    eps = config.rms_norm_eps
    norm = RmsNorm("input_layernorm", eps)
    delta = ChannelDelta(
        hidden_size=config.hidden_size,
        heads=config.linear_num_heads,
        head_dim=config.linear_head_dim,
        conv_width=config.linear_conv_kernel_dim,
        eps=eps,
        norm=norm,
    )
    mlp = Mlp(
        **mlp_sizes(config),
        norm=RmsNorm("post_attention_layernorm", eps),
        activation=silu(config),
    )
    layers = [
        (delta if kind == DELTA else _attention(config, norm), mlp if dense else _experts(config))
        for kind, dense in zip(
            layer_kinds(config, DELTA, ATTENTION),
            (kind == "dense" for kind in config.mlp_layer_types),
            strict=True,
        )
    ]
    return decoder(
        config,
        layers,
        RmsNorm("model.norm", eps),
        renamed=[(".block_sparse_moe.", ".mlp."), (".forget_gate.", ".")],
    )


def _attention(config: Any, norm: RmsNorm) -> LatentAttention:
    head_dim = key_lanes(config)
    return LatentAttention(
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        norm=norm,
        rotation=no_rotation(head_dim),
        scale=head_dim**-0.5,
        q_rank=config.q_lora_rank,
        kv_rank=config.kv_lora_rank,
        nope=config.qk_nope_head_dim,
        rope=config.qk_rope_head_dim,
        value=config.v_head_dim,
        interleaved=False,
    )


def _experts(config: Any) -> ExpertMlp:
    return ExpertMlp(
        hidden_size=config.hidden_size,
        norm_eps=config.rms_norm_eps,
        names=("w1", "w3", "w2"),
        num_experts=config.num_local_experts,
        rules=by_scores(config),
        correction=CORRECTION,
        inner=config.moe_intermediate_size,
        shared_inner=config.moe_intermediate_size * config.n_shared_experts,
        shared_name="shared_experts",
        shared_gate=False,
    )
