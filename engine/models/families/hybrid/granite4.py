"""Granite 4: state spaces, and attention in some layers, with Granite's factors."""

from __future__ import annotations

from typing import Any

from engine.kernels.experts.routing import RoutingRules
from engine.models.families.config import (
    biases,
    layer_kinds,
    no_rotations,
    silu,
    sizes,
    step_limits,
    whole_heads,
)
from engine.models.families.granite import granite_decoder
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.experts import ExpertMlp
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm
from engine.models.layers.recurrent.state_space import StateSpace
from engine.models.layers.residual import AddedOutput

SPACE, ATTENTION = "linear_attention", "full_attention"


def granitemoehybrid(config: Any) -> DecoderSpec:
    """A state space or attention, and a gated MLP, each after a norm and times a factor.

    Where there are experts, the MLP is the one that all tokens take.
    """
    eps, output = config.rms_norm_eps, AddedOutput(scale=config.residual_multiplier)
    speeds = whole_heads if config.position_embedding_type == "rope" else no_rotations
    space = StateSpace(
        hidden_size=config.hidden_size,
        norm=RmsNorm("input_layernorm", eps),
        name="mamba",
        heads=config.mamba_n_heads,
        head_dim=config.mamba_d_head,
        groups=config.mamba_n_groups,
        state_size=config.mamba_d_state,
        conv_width=config.mamba_d_conv,
        eps=eps,
        conv_bias=config.mamba_conv_bias,
        in_bias=config.mamba_proj_bias,
        out_bias=config.mamba_proj_bias,
        norm_groups=config.mamba_n_groups,
        dt_limits=step_limits(config),
        output=output,
    )
    mlp = Mlp(
        hidden_size=config.hidden_size,
        inner=config.shared_intermediate_size,
        norm=RmsNorm("post_attention_layernorm", eps),
        name="shared_mlp",
        gate_up=("input_linear",),
        down="output_linear",
        activation=silu(config),
        output=output,
    )
    layers = [
        (
            space
            if kind == SPACE
            else Attention(
                **sizes(config),
                **biases(config),
                norm=RmsNorm("input_layernorm", eps),
                rotation=rotation,
                scale=config.attention_multiplier,
                output=output,
            ),
            _experts(config, output) if config.num_local_experts else mlp,
        )
        for kind, rotation in zip(
            layer_kinds(config, SPACE, ATTENTION), speeds(config), strict=True
        )
    ]
    return granite_decoder(config, layers)


def _experts(config: Any, output: AddedOutput) -> ExpertMlp:
    return ExpertMlp(
        hidden_size=config.hidden_size,
        norm_eps=config.rms_norm_eps,
        name="block_sparse_moe",
        packed=("input_linear.weight", "output_linear.weight"),
        router="router.layer",
        num_experts=config.num_local_experts,
        rules=RoutingRules(config.num_experts_per_tok, over_chosen=True),
        inner=config.intermediate_size,
        shared_inner=config.shared_intermediate_size,
        shared_name="shared_mlp",
        shared_beside=True,
        shared_gate=False,
        shared_names=("input_linear", "output_linear"),
        output=output,
    )
