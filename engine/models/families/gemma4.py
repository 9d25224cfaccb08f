"""The text of Gemma 4: 31B, 26B with experts, and E4B and E2B with vectors for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.errors import AS_PUBLISHED, ModelError
from engine.kernels.experts.gates import GELU_TANH
from engine.kernels.experts.routing import RoutingRules
from engine.models.families.checks import check_given
from engine.models.families.config import (
    NotFusedError,
    activation,
    decoder,
    refuse,
)
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.dense_and_experts import DenseAndExperts
from engine.models.layers.experts import ExpertMlp
from engine.models.layers.layer import SublayerSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import WideNorm
from engine.models.layers.per_layer import LayerEnd, PerLayerEmbedding
from engine.models.layers.residual import AddedOutput
from engine.models.layers.rotation import RotationSpeeds, proportional_speeds
from engine.models.layers.shared_keys import SharedKeyAttention
from engine.models.layers.vocabulary import LmHead, TokenEmbedding

FULL, SLIDING = "full_attention", "sliding_attention"
OTHERS = ("vision_tower.", "embed_vision.", "audio_tower.", "embed_audio.")


def gemma4(config: Any) -> DecoderSpec:
    """Attention by the layer's kind and a gated MLP, each between two norms, then a factor."""
    refuse(config, "attention_bias")
    _check(config)
    eps, width = config.rms_norm_eps, config.hidden_size_per_layer_input or 0
    speeds = {kind: _rotation(config, kind) for kind in set(config.layer_types)}
    layers = []
    for index, kind in enumerate(config.layer_types):
        end = LayerEnd(
            hidden_size=config.hidden_size,
            index=index,
            width=width,
            activation=activation(config, gated=False),
            norm=WideNorm("post_per_layer_input_norm", eps),
        )
        layers.append((_attention(config, index, speeds[kind]), _mlp(config, index), end))
    per_layer = PerLayerEmbedding(
        num_layers=config.num_hidden_layers,
        width=width,
        vocab_size=config.vocab_size_per_layer_input,
        hidden_size=config.hidden_size,
        eps=eps,
    )
    return decoder(
        config,
        layers,
        WideNorm("model.norm", eps),
        embedding=TokenEmbedding(scale=config.hidden_size**0.5, rounds_scale=True),
        lm_head=LmHead(is_tied=config.tie_word_embeddings, softcap=config.final_logit_softcapping),
        per_layer=per_layer if width else None,
        renamed=[("model.language_model.", "model.")],
        unread=(*(f"model.{name}" for name in OTHERS), *_unread_keys(config)),
    )


def _check(config: Any) -> None:
    """Refuse layers that read keys which none keeps, heads that do not divide, and tokens without
    vectors of layers.

    Raises:
        ModelError: it would only show once a step looks for them.
    """
    count = config.num_kv_shared_layers
    owners = config.layer_types[: max(config.num_hidden_layers - count, 0)]
    for kind in config.layer_types[len(owners) :]:
        if kind not in owners:
            raise ModelError(
                f"config.json: num_kv_shared_layers {count} has the last layers read the keys of "
                f"earlier ones, none of which is of the kind {kind!r}; {AS_PUBLISHED}"
            )
    heads = config.num_attention_heads
    for index in range(config.num_hidden_layers):
        if heads % (keys := config.per_layer_config[index].num_key_value_heads):
            raise ModelError(
                f"config.json: {keys} key heads of layer {index} do not divide the {heads} of "
                f"num_attention_heads; {AS_PUBLISHED}"
            )
    size = config.vocab_size_per_layer_input
    if config.hidden_size_per_layer_input and size < config.vocab_size:
        raise ModelError(
            f"config.json: vocab_size_per_layer_input {size} is less than the "
            f"{config.vocab_size} of vocab_size; {AS_PUBLISHED}"
        )


def _attention(config: Any, index: int, rotation: RotationSpeeds) -> SharedKeyAttention:
    kind, own, eps = config.layer_types[index], config.per_layer_config[index], config.rms_norm_eps
    first_shared = config.num_hidden_layers - config.num_kv_shared_layers
    is_last_owner = (
        index < first_shared and kind not in config.layer_types[index + 1 : first_shared]
    )
    return SharedKeyAttention(
        hidden_size=config.hidden_size,
        num_q_heads=config.num_attention_heads,
        num_kv_heads=own.num_key_value_heads,
        head_dim=own.head_dim,
        norm=WideNorm("input_layernorm", eps),
        eps=eps,
        rotation=rotation,
        scale=1.0,
        window=config.sliding_window if kind == SLIDING else None,
        keys_are_values=config.attention_k_eq_v and kind == FULL,
        keeps=kind if config.num_kv_shared_layers and is_last_owner else None,
        reads=kind if index >= first_shared else None,
        output=AddedOutput(WideNorm("post_attention_layernorm", eps)),
    )


def _mlp(config: Any, index: int) -> SublayerSpec:
    eps = config.rms_norm_eps
    is_shared = index >= config.num_hidden_layers - config.num_kv_shared_layers
    norm = WideNorm("post_feedforward_layernorm", eps)
    mlp = Mlp(
        hidden_size=config.hidden_size,
        inner=config.intermediate_size * (2 if config.use_double_wide_mlp and is_shared else 1),
        norm=WideNorm("pre_feedforward_layernorm", eps),
        activation=activation(config),
        output=AddedOutput(None if config.enable_moe_block else norm),
    )
    if not config.enable_moe_block:
        return mlp
    check_given(config, "num_experts", "top_k_experts", "moe_intermediate_size")
    if config.hidden_activation != "gelu_pytorch_tanh":
        raise NotFusedError(f"hidden_activation {config.hidden_activation!r} of experts")
    experts = ExpertMlp(
        hidden_size=config.hidden_size,
        norm="pre_feedforward_layernorm_2",
        norm_eps=eps,
        name="experts",
        packed=("gate_up_proj", "down_proj"),
        num_experts=config.num_experts,
        rules=RoutingRules(config.top_k_experts, over_chosen=True),
        inner=config.moe_intermediate_size,
        gate=GELU_TANH,
    )
    return DenseAndExperts(
        mlp=mlp,
        mlp_norm=WideNorm("post_feedforward_layernorm_1", eps),
        experts=experts,
        before=WideNorm("pre_feedforward_layernorm_2", eps),
        after=WideNorm("post_feedforward_layernorm_2", eps),
        norm=norm,
        eps=eps,
    )


def _rotation(config: Any, kind: str) -> RotationSpeeds:
    rope, own = config.rope_parameters[kind], config.per_layer_config[kind]
    if rope["rope_type"] not in ("default", "proportional"):
        raise NotFusedError(f"rope_type {rope['rope_type']!r}")
    read = rope if rope["rope_type"] == "proportional" else {}
    return proportional_speeds(
        rope["rope_theta"],
        own.head_dim,
        part=read.get("partial_rotary_factor", 1.0),
        factor=read.get("factor", 1.0),
    )


def _unread_keys(config: Any) -> Sequence[str]:
    """Beginnings of tensors that checkpoints hold of layers that read another layer's keys."""
    first = config.num_hidden_layers - config.num_kv_shared_layers
    return [
        f"model.layers.{index}.self_attn.{part}"
        for index in range(first, config.num_hidden_layers)
        for part in ("k_proj", "v_proj", "k_norm", "v_norm")
    ]
