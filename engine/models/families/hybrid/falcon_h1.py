"""Falcon-H1 (arXiv 2507.22448): attention and a state space side by side in every layer."""

from __future__ import annotations

from typing import Any

from engine.models.families.config import (
    NotFusedError,
    biases,
    decoder,
    silu,
    sizes,
    step_limits,
    whole_heads,
)
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import OwnInput, RmsNorm
from engine.models.layers.recurrent.state_space import StateSpace
from engine.models.layers.residual import AddedOutput
from engine.models.layers.rotation import RotationSpeeds
from engine.models.layers.side_by_side import SideBySide
from engine.models.layers.vocabulary import LmHead, TokenEmbedding


def falcon_h1(config: Any) -> DecoderSpec:
    """Both mixers after one norm, then a gated MLP; factors everywhere."""
    _check_biases(config)
    eps = config.rms_norm_eps
    gate_scale, down_scale = config.mlp_multipliers
    mlp = Mlp(
        hidden_size=config.hidden_size,
        inner=config.intermediate_size,
        norm=RmsNorm("pre_ff_layernorm", eps),
        name="feed_forward",
        activation=silu(config)._replace(gate_scale=gate_scale),
        has_bias=config.mlp_bias,
        output=AddedOutput(scale=down_scale),
    )
    layers = [
        (
            SideBySide(
                config.hidden_size,
                RmsNorm("input_layernorm", eps),
                (_space(config), _attention(config, rotation)),
            ),
            mlp,
        )
        for rotation in whole_heads(config)
    ]
    return decoder(
        config,
        layers,
        RmsNorm("model.final_layernorm", eps),
        embedding=TokenEmbedding(scale=config.embedding_multiplier),
        lm_head=LmHead(is_tied=config.tie_word_embeddings, scale=config.lm_head_multiplier),
    )


def _check_biases(config: Any) -> None:
    """Refuse biases beside factors of inputs, which are taken for factors of whole products."""
    for bias, factor in (
        ("attention_bias", "attention_in_multiplier"),
        ("mamba_proj_bias", "ssm_in_multiplier"),
    ):
        if getattr(config, bias) and getattr(config, factor) != 1.0:
            raise NotFusedError(f"{bias} with {factor} {getattr(config, factor)}")


def _space(config: Any) -> StateSpace:
    inner = config.mamba_d_ssm or int(config.mamba_expand * config.hidden_size)
    return StateSpace(
        hidden_size=config.hidden_size,
        norm=OwnInput(),
        name="mamba",
        heads=config.mamba_n_heads,
        head_dim=inner // config.mamba_n_heads,
        groups=config.mamba_n_groups,
        state_size=config.mamba_d_state,
        conv_width=config.mamba_d_conv,
        eps=config.rms_norm_eps,
        conv_bias=config.mamba_conv_bias,
        in_bias=config.mamba_proj_bias,
        out_bias=config.projectors_bias,
        norm_groups=config.mamba_n_groups if config.mamba_rms_norm else 0,
        gate_first=not config.mamba_norm_before_gate,
        dt_limits=step_limits(config),
        input_scales=tuple(config.ssm_in_multiplier * each for each in config.ssm_multipliers),
        output=AddedOutput(scale=config.ssm_out_multiplier),
    )


def _attention(config: Any, rotation: RotationSpeeds) -> Attention:
    """Factors of its inputs are those of scores and of the output."""
    of_input, head = config.attention_in_multiplier, sizes(config)
    return Attention(
        **head,
        **biases(config),
        norm=OwnInput(),
        rotation=rotation,
        scale=head["head_dim"] ** -0.5 * of_input**2 * config.key_multiplier,
        output=AddedOutput(scale=of_input * config.attention_out_multiplier),
    )
