"""Nemotron-H and Nemotron 3 (arXiv 2504.03624): layers that are one mixer, or one MLP, each."""

from __future__ import annotations

from typing import Any

from engine.models.families.config import (
    NotFusedError,
    activation_of,
    biases,
    decoder,
    layer_kinds,
    no_rotations,
    sizes,
)
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.layer import SublayerSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm
from engine.models.layers.state_space import StateSpace
from engine.models.layers.vocabulary import TokenEmbedding

SPACE, ATTENTION, MLP = "linear_attention", "full_attention", "mlp"


def nemotron_h(config: Any) -> DecoderSpec:
    """A state space, attention, or an MLP without a gate, each after a norm."""
    norm = RmsNorm("norm", config.layer_norm_epsilon)
    kinds: dict[str, SublayerSpec] = {
        SPACE: _space(config, norm),
        ATTENTION: Attention(
            **sizes(config),
            **biases(config),
            norm=norm,
            name="mixer",
            rotation=no_rotations(config)[0],
        ),
        MLP: Mlp(
            hidden_size=config.hidden_size,
            inner=config.intermediate_size,
            norm=norm,
            name="mixer",
            gate_up=("up_proj",),
            activation=activation_of(config.mlp_hidden_act, gated=False),
            has_bias=config.mlp_bias,
        ),
    }
    return decoder(
        config,
        [(kinds[kind],) for kind in layer_kinds(config, *kinds)],
        RmsNorm("backbone.norm_f", config.layer_norm_epsilon),
        embedding=TokenEmbedding(name="backbone.embeddings"),
        prefix="backbone",
    )


def _space(config: Any, norm: RmsNorm) -> StateSpace:
    if config.mamba_hidden_act != "silu":
        raise NotFusedError(f"mamba_hidden_act {config.mamba_hidden_act!r}")
    return StateSpace(
        hidden_size=config.hidden_size,
        norm=norm,
        heads=config.mamba_num_heads,
        head_dim=config.mamba_head_dim,
        groups=config.n_groups,
        state_size=config.ssm_state_size,
        conv_width=config.conv_kernel,
        eps=config.layer_norm_epsilon,
        conv_bias=config.use_conv_bias,
        has_bias=config.mamba_proj_bias,
        norm_groups=config.n_groups,
        dt_limits=tuple(config.time_step_limit),
    )
