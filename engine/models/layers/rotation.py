"""How a model's heads are rotated: speeds of their lanes, and the order that our kernels expect.

Kernels turn the pair of lanes (i, i + D/2) of a head of D lanes. Models that pair neighbors, or
turn only the first lanes, fit by another order of the lanes of queries and keys, which changes no
product of the two: first lanes of pairs in the lower half, second lanes in the upper. Lanes that
are not rotated are pairs of speed zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.errors import AS_PUBLISHED, ModelError

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "dynamic", "longrope")
"""RoPE types whose angles depend on the position alone, up to the model's last position."""


class RotationSpeeds(NamedTuple):
    """Radians that a position adds to a pair, float32 [head_dim / 2]; factor of cos and sin."""

    inv_freq: torch.Tensor
    scale: float


def rope_parameters(config: Any, layer_type: str | None) -> dict[str, Any]:
    """The RoPE parameters of layers of a type; of all layers where they do not differ."""
    parameters: dict[str, Any] = config.rope_parameters
    if layer_type is not None and isinstance(parameters.get(layer_type), dict):
        own: dict[str, Any] = parameters[layer_type]
        return own
    return parameters


def rotary_dim(config: Any, head_dim: int, layer_type: str | None) -> int:
    """The number of a head's lanes that are rotated."""
    if (own := getattr(config, "qk_rope_head_dim", None)) is not None:
        return int(own)
    part = rope_parameters(config, layer_type).get("partial_rotary_factor", 1.0)
    if not 0.0 <= part <= 1.0:
        raise ModelError(
            f"config.json: partial_rotary_factor must be from 0 to 1, got {part}; {AS_PUBLISHED}"
        )
    return int(head_dim * part)


def rotation_speeds(config: Any, head_dim: int, layer_type: str | None) -> RotationSpeeds:
    """The speeds of a config's layers of one type."""
    rope = rope_parameters(config, layer_type)
    if rope["rope_type"] == "default":
        dim = rotary_dim(config, head_dim, layer_type)
        inv_freq, scale = _speeds(rope["rope_theta"], dim), 1.0
    elif rope["rope_type"] == "dynamic" and rope.get("alpha"):  # HunYuan's, which is not dynamic
        dim = rotary_dim(config, head_dim, layer_type)
        inv_freq, scale = _speeds(rope["rope_theta"] * rope["alpha"] ** (dim / (dim - 2)), dim), 1.0
    else:
        own = {} if rope is config.rope_parameters else {"layer_type": layer_type}
        make = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
        inv_freq, scale = make(config, torch.device("cpu"), **own)
    padded = torch.zeros(head_dim // 2)
    padded[: len(inv_freq)] = inv_freq
    return RotationSpeeds(padded, float(scale))


def _speeds(theta: float, dim: int) -> torch.Tensor:
    """Radians that a position adds to each of dim / 2 pairs."""
    return 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float) / dim))


def proportional_speeds(
    theta: float, head_dim: int, *, part: float, factor: float
) -> RotationSpeeds:
    """The speeds of a whole head, of which a part of the pairs rotate, the fastest first.

    Args:
        factor: by which positions are nearer to one another.
    """
    speeds = _speeds(theta, head_dim) / factor
    speeds[int(part * head_dim // 2) :] = 0.0
    return RotationSpeeds(speeds, 1.0)


def no_rotation(head_dim: int) -> RotationSpeeds:
    """The speeds of layers that turn nothing."""
    return RotationSpeeds(torch.zeros(head_dim // 2), 1.0)


def lane_order(head_dim: int, rotated: int, *, interleaved: bool) -> torch.Tensor | None:
    """The model's lane at each of our lanes, int64 [head_dim]; None where they are the same.

    Args:
        rotated: the first lanes are rotated. interleaved: in pairs of neighbors.
    """
    lanes = torch.arange(head_dim)
    if interleaved:
        order = torch.cat([lanes[::2], lanes[1::2]])
    else:
        first, second, rest = lanes.split([rotated // 2, rotated // 2, head_dim - rotated])  # type: ignore[no-untyped-call]
        order = torch.cat([first, rest[::2], second, rest[1::2]])
    return None if torch.equal(order, lanes) else order
