"""Nemotron-H and Nemotron 3 (arXiv 2504.03624): layers of one mixer, MLP or experts each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.kernels.experts.gates import RELU2
from engine.kernels.experts.routing import RoutingRules
from engine.models.families.config import (
    NotFusedError,
    activation_of,
    biases,
    decoder,
    layer_kinds,
    no_rotations,
    sizes,
    step_limits,
)
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec, DraftingSpec
from engine.models.layers.experts import ExpertMlp
from engine.models.layers.layer import Layer, SublayerSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm
from engine.models.layers.recurrent.state_space import StateSpace
from engine.models.layers.vocabulary import TokenEmbedding

SPACE, ATTENTION, MLP, EXPERTS = "linear_attention", "full_attention", "mlp", "moe"


def nemotron_h(config: Any) -> DecoderSpec:
    """A state space, attention, an MLP or experts without gates, each after a norm."""
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
    drafting = config.mtp_layers_block_type if config.num_nextn_predict_layers else []
    if EXPERTS in (*config.layer_types, *drafting):
        kinds[EXPERTS] = _experts(config)
    return decoder(
        config,
        [(kinds[kind],) for kind in layer_kinds(config, SPACE, ATTENTION, MLP, EXPERTS)],
        RmsNorm("backbone.norm_f", config.layer_norm_epsilon),
        embedding=TokenEmbedding(name="backbone.embeddings"),
        prefix="backbone",
        drafting=_drafting(drafting, kinds, config.layer_norm_epsilon),
        unread=("mtp.",),
    )


def _drafting(
    names: Sequence[str], kinds: dict[str, SublayerSpec], eps: float
) -> DraftingSpec | None:
    """The head that drafts further tokens, of layers of one sublayer each; None where there is
    none, or one whose layers keep states."""
    own = [ATTENTION if name == "attention" else name for name in names]
    if not own or SPACE in own:
        return None
    layers = [Layer(f"mtp.layers.{index}", (kinds[kind],)) for index, kind in enumerate(own)]
    return DraftingSpec(
        embedding_norm=RmsNorm("mtp.layers.0.enorm", eps),
        hidden_norm=RmsNorm("mtp.layers.0.hnorm", eps),
        fuse="mtp.layers.0.eh_proj",
        layers=layers,
        final_norm=RmsNorm(f"{layers[-1].name}.final_layernorm", eps),
    )


def _experts(config: Any) -> ExpertMlp:
    if config.mlp_hidden_act != "relu2" or config.mlp_bias:
        raise NotFusedError(f"mlp_hidden_act {config.mlp_hidden_act!r} or biases of experts")
    latent = config.moe_latent_size
    return ExpertMlp(
        hidden_size=config.hidden_size,
        norm="norm",
        norm_eps=config.layer_norm_epsilon,
        name="mixer",
        names=("up_proj", "down_proj"),
        gate=RELU2,
        num_experts=config.n_routed_experts,
        rules=RoutingRules(
            config.num_experts_per_tok,
            over_chosen=config.norm_topk_prob,
            scale=config.routed_scaling_factor,
            sigmoid=True,
            num_groups=config.n_group,
            top_groups=config.topk_group,
        ),
        correction="gate.e_score_correction_bias",
        inner=config.moe_intermediate_size,
        latent=None if latent is None else (latent, "fc1_latent_proj", "fc2_latent_proj"),
        shared_inner=config.moe_shared_expert_intermediate_size,
        shared_name="shared_experts",
        shared_gate=False,
        shared_names=("up_proj", "down_proj"),
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
        in_bias=config.use_bias,
        out_bias=config.use_bias,
        norm_groups=config.n_groups,
        dt_limits=step_limits(config),
    )
