"""What families read alike from transformers configs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from engine.errors import AS_PUBLISHED, ModelError
from engine.models.layers.activation import Activation
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.layer import Layer, SublayerSpec
from engine.models.layers.norms import NormSpec
from engine.models.layers.rotation import (
    ROPE_TYPES,
    RotationSpeeds,
    lane_order,
    no_rotation,
    rope_parameters,
    rotary_dim,
    rotation_speeds,
)
from engine.models.layers.vocabulary import LmHead, TokenEmbedding

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu2",
}
"""Our names of the activations that configs name."""


class NotFusedError(Exception):
    """A config asks for what its family's layers do not do; the message says for what."""


def decoder(
    config: Any,
    sublayers: Iterable[Iterable[SublayerSpec]],
    final_norm: NormSpec,
    *,
    embedding: TokenEmbedding | None = None,
    lm_head: LmHead | None = None,
    prefix: str = "model",
    **checkpoint: Any,
) -> DecoderSpec:
    """The decoder of a config.

    Args:
        sublayers: of each layer, in order.
        prefix: what the names of its layers begin with.
        checkpoint: fields of the spec that say what else checkpoints have.
    """
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        max_position=config.max_position_embeddings,
        initializer_range=config.initializer_range,
        embedding=embedding or TokenEmbedding(),
        layers=[
            Layer(f"{prefix}.layers.{index}", tuple(own)) for index, own in enumerate(sublayers)
        ],
        final_norm=final_norm,
        lm_head=lm_head or LmHead(is_tied=config.tie_word_embeddings),
        num_drafting_layers=getattr(config, "num_nextn_predict_layers", None) or 0,
        **checkpoint,
    )


def sizes(config: Any) -> dict[str, Any]:
    """The sizes of an `Attention`."""
    return {
        "hidden_size": config.hidden_size,
        "num_q_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads or config.num_attention_heads,
        "head_dim": head_dim(config),
    }


def biases(config: Any) -> dict[str, Any]:
    """The biases of an `Attention` whose products have all or none."""
    bias = bool(getattr(config, "attention_bias", False))
    return {"qkv_bias": bias, "o_bias": bias}


def mlp_sizes(config: Any) -> dict[str, Any]:
    """The sizes of an `Mlp`, and whether its products have biases."""
    return {
        "hidden_size": config.hidden_size,
        "inner": config.intermediate_size,
        "has_bias": bool(getattr(config, "mlp_bias", False)),
    }


def head_dim(config: Any) -> int:
    """Lanes of a head."""
    own: int | None = getattr(config, "head_dim", None)
    return own or int(config.hidden_size // config.num_attention_heads)


def activation(config: Any, *, gated: bool = True) -> Activation:
    """The activation of an MLP."""
    return activation_of(
        getattr(config, "hidden_activation", None) or config.hidden_act, gated=gated
    )


def activation_of(name: str, *, gated: bool) -> Activation:
    """The activation that a config names."""
    if name not in ACTIVATIONS:
        raise NotFusedError(f"hidden_act {name!r}")
    return Activation(ACTIVATIONS[name], gated)


def silu(config: Any) -> Activation:
    """The activation of families whose layers have no other than gated SiLU."""
    own = activation(config)
    if not own.is_gated_silu:
        name = getattr(config, "hidden_activation", None) or config.hidden_act
        raise NotFusedError(f"hidden_act {name!r}")
    return own


def windows(config: Any) -> list[int | None]:
    """The sliding window of each layer, by `layer_types`; None where a layer sees all."""
    types = getattr(config, "layer_types", None)
    if types is None or not getattr(config, "use_sliding_window", True):
        return [None] * config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    return [window if kind == "sliding_attention" else None for kind in _own(config, types)]


def one_window(config: Any) -> list[int | None]:
    """The sliding window that all layers have, or none."""
    return [getattr(config, "sliding_window", None)] * config.num_hidden_layers


def rotations(config: Any, width: int | None = None) -> list[RotationSpeeds]:
    """The rotation of each layer, of heads of `width` lanes.

    Raises:
        NotFusedError: angles depend on more than a position, or a number of lanes is odd.
    """
    width = width or head_dim(config)
    own = [name for name, value in config.rope_parameters.items() if isinstance(value, dict)]
    speeds = {}
    for layer_type in sorted(own) or [None]:
        rope = rope_parameters(config, layer_type)
        if rope["rope_type"] not in ROPE_TYPES:
            raise NotFusedError(f"rope_type {rope['rope_type']!r}")
        rotated = rotary_dim(config, width, layer_type)
        if rotated % 2 or width % 2:
            raise NotFusedError(f"{rotated} of {width} lanes of a head rotated")
        speeds[layer_type] = rotation_speeds(config, width, layer_type)
    if None in speeds:
        return [speeds[None]] * config.num_hidden_layers
    return [speeds[kind] for kind in _own(config, config.layer_types)]


def no_rotations(config: Any) -> list[RotationSpeeds]:
    """The rotation of each layer of a model without rotations.

    Raises:
        NotFusedError: a number of lanes is odd.
    """
    width = head_dim(config)
    if width % 2:
        raise NotFusedError(f"heads of {width} lanes")
    return [no_rotation(width)] * config.num_hidden_layers


def layer_kinds(config: Any, *known: str) -> list[str]:
    """The kind of each layer, by `layer_types`.

    Raises:
        ModelError: one is not known, or missing.
    """
    kinds = _own(config, config.layer_types or [])
    if len(kinds) < config.num_hidden_layers:
        raise ModelError(
            f"config.json: layer_types has {len(kinds)} of {config.num_hidden_layers} layers "
            f"(num_hidden_layers); {AS_PUBLISHED}"
        )
    for index, kind in enumerate(kinds):
        if kind not in known:
            raise ModelError(
                f"config.json: layer_types has {kind!r} at layer {index}, which is not served; "
                f"those of {config.model_type} are {', '.join(known)}"
            )
    return kinds


def whole_heads(config: Any) -> list[RotationSpeeds]:
    """The rotation of each layer, in families that rotate all lanes of a head."""
    width = head_dim(config)
    if rotary_dim(config, width, None) < width:
        factor = config.rope_parameters["partial_rotary_factor"]
        raise NotFusedError(f"partial_rotary_factor {factor}")
    return rotations(config)


def lanes(config: Any, *, interleaved: bool = False) -> torch.Tensor | None:
    """The order of a head's lanes, see `lane_order`; it is that of all layers."""
    own = sorted(name for name, value in config.rope_parameters.items() if isinstance(value, dict))
    width = head_dim(config)
    rotated = rotary_dim(config, width, own[0] if own else None)
    return lane_order(width, rotated, interleaved=interleaved)


def step_limits(config: Any) -> tuple[float, float]:
    """The least and the most step size of a state space; null is no limit."""
    low, high = config.time_step_limit or (0.0, math.inf)
    return low, high


def refuse(config: Any, *names: str) -> None:
    """Raise `NotFusedError` where a config sets one of some flags."""
    for name in names:
        if getattr(config, name, False):
            raise NotFusedError(f"{name} true")


def _own(config: Any, types: list[str]) -> list[str]:
    """The types of the layers that there are; a config may list more."""
    return types[: config.num_hidden_layers]
