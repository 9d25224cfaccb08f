# mypy: allow-untyped-defs, allow-incomplete-defs
"""What four bits stand for, in torch and in kernels, before a group's scale multiplies.

int4   q - z, q from 0 to 15, z the group's zero point or `MIDDLE`
mxfp4  e2m1 (OCP Microscaling Formats 1.0): a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6
"""

from __future__ import annotations

import torch

from engine.kernels.quantized.int4 import MIDDLE, Int4Groups
from sampling.device.triton_support import constexpr, jit, tl

INT4, MXFP4 = "int4", "mxfp4"
MXFP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MXFP4_GROUP = 32
"""Inputs under one scale, a power of two."""

_MIDDLE = constexpr(MIDDLE)


def dequantized(groups: Int4Groups, code: str) -> torch.Tensor:
    """A weight's values as float32 [out, in_features]."""
    if code == INT4:
        return groups.dequantized()
    values = torch.tensor([*MXFP4_VALUES, *(-value for value in MXFP4_VALUES)])
    plain = groups._replace(scales=torch.ones_like(groups.scales, dtype=torch.float32), zeros=None)
    q = (plain.dequantized() + MIDDLE).long()
    scales = groups.scales.float().repeat_interleave(groups.group, 1)[:, : groups.in_features]
    return values.to(q.device)[q] * scales


@jit
def value_of(q, zero, code: tl.constexpr):
    """What four bits, 0 to 15, stand for, in float32."""
    if code == "int4":
        values = q.to(tl.float32) - (_MIDDLE if zero is None else zero)
    else:  # the values are on a convex chain of three lines
        m = (q & 7).to(tl.float32)
        size = tl.maximum(tl.maximum(0.5 * m, m - 2.0), 2.0 * m - 8.0)
        values = tl.where(q > 7, -size, size)
    return values
