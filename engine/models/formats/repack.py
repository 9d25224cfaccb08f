"""Writes the tensors of one quantized module as the tool that made them lays them out.

The inverse of `unpack`, from what `Part.portions` names: "values" in float8 or "numbers" of 4 bits,
"scales" and "zeros" by channel and group.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engine.kernels.experts.nibbles import MXFP4_GROUP
from engine.kernels.quantized.fp8_blocks import SPAN
from engine.kernels.quantized.int4 import MIDDLE
from engine.models.formats.mxfp4 import EXPONENT_BIAS_AT
from engine.models.formats.scheme import Scheme
from engine.models.formats.unpack import AWQ_ORDER

Held = Mapping[str, torch.Tensor]
"""A whole weight's numbers, as `Part.portions` names them."""

IN_ORDER = tuple(range(8))


def repack(scheme: Scheme, held: Held) -> dict[str, torch.Tensor]:
    """The module's tensors by the ends of their names, scales by all that they may be called."""
    if scheme.is_fp8:
        return _fp8(scheme, held)
    return {"gptq": _gptq, "awq": _awq, "packed": _packed}[scheme.storage](scheme, held)


def dequantize(held: Held, groups: torch.Tensor) -> torch.Tensor:
    """The weight's values as float32 [out, in].

    Args:
        groups: int64 [in], the group of each input, of numbers of 4 bits or float8 by blocks.
    """
    scales = held.get("scales")
    if "numbers" in held:
        assert scales is not None
        groups = groups.to(scales.device)
        zeros = held["zeros"][:, groups].float() if "zeros" in held else MIDDLE
        return (held["numbers"].float() - zeros) * scales[:, groups].float()
    values = held["values"].float()
    if scales is None:
        return values
    return values * (scales[:, None] if scales.dim() == 1 else scales[:, groups.to(values.device)])


def _fp8(scheme: Scheme, held: Held) -> dict[str, torch.Tensor]:
    scales = held["scales"]
    if scheme.storage == "fp8-blocks":
        scales = scales[::SPAN]
    return {"weight": held["values"], "weight_scale": scales, "weight_scale_inv": scales}


def _words(values: torch.Tensor, order: tuple[int, ...] = IN_ORDER) -> torch.Tensor:
    """Pack uint8 [..., 8 * w] into int32 [..., w]; place `order[j]` goes to nibble j of a word."""
    by_word = values.view(*values.shape[:-1], -1, 8).to(torch.int32)
    words = torch.zeros(by_word.shape[:-1], dtype=torch.int32, device=values.device)
    for nibble, place in enumerate(order):
        words |= by_word[..., place] << 4 * nibble
    return words


def _gptq(scheme: Scheme, held: Held) -> dict[str, torch.Tensor]:
    zeros = (held["zeros"].t().contiguous().to(torch.int16) - scheme.zero_offset) & 15
    return {
        "qweight": _words(held["numbers"]).t().contiguous(),
        "qzeros": _words(zeros),
        "scales": held["scales"].t().contiguous(),
    }


def _awq(scheme: Scheme, held: Held) -> dict[str, torch.Tensor]:
    return {
        "qweight": _words(held["numbers"].t().contiguous(), AWQ_ORDER),
        "qzeros": _words(held["zeros"].t().contiguous(), AWQ_ORDER),
        "scales": held["scales"].t().contiguous(),
    }


def _packed(scheme: Scheme, held: Held) -> dict[str, torch.Tensor]:
    tensors = {"weight_packed": _words(held["numbers"]), "weight_scale": held["scales"]}
    if scheme.has_zeros:
        zeros = _words(held["zeros"].t().contiguous())  # [groups, out / 8]
        tensors["weight_zero_point"] = zeros.t().contiguous()
    return tensors


def repack_mxfp4(held: Held) -> tuple[torch.Tensor, torch.Tensor]:
    """The blocks [..., in / 32, 16] and exponents [..., in / 32] of numbers and scales."""
    numbers, scales = held["numbers"], held["scales"]
    pairs = numbers.view(*numbers.shape[:-1], -1, MXFP4_GROUP // 2, 2)
    exponents = (scales.float().view(torch.int32) >> EXPONENT_BIAS_AT).to(torch.uint8)
    return pairs[..., 0] | pairs[..., 1] << 4, exponents
