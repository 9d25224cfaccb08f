# mypy: allow-untyped-defs, allow-incomplete-defs
"""The RMSNorm after a recurrence, gated before or after it.

Groups x [G, D] of a token are normalized each alone: x / sqrt(mean(x²) + eps) * weight. The gate
goes through silu or sigmoid, and multiplies the input (`gate_first`, Mamba 2) or the result
(delta rules). Computed in float32 and rounded once; transformers also rounds in between.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.invariant.functions import elementwise
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, padded_lanes, tl, triton


class GatedNorm(NamedTuple):
    """A gated norm's weights and order.

    Attributes:
        weight: [D], or [G, D] where each group has its own.
        gate_first: the gate multiplies before the norm. sigmoid: it goes through that, not silu.
    """

    weight: torch.Tensor
    eps: float
    gate_first: bool = False
    sigmoid: bool = False

    def __call__(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Normalize x [T, G, D], gated by `gate` [T, G, D] of a product's columns → [T, G * D]."""
        if x.is_cuda:
            return gated_norm_triton(self, x, gate)
        return gated_norm_torch(self, x, gate)


def gated_norm_torch(norm: GatedNorm, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    wide, factor = x.float(), gate.float()
    factor = elementwise(torch.sigmoid if norm.sigmoid else F.silu, factor)
    if norm.gate_first:
        wide = wide * factor
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps)
    wide = wide * norm.weight.float()
    return (wide if norm.gate_first else wide * factor).to(x.dtype).flatten(1)


class NormShape(NamedTuple):
    """The shape of a launch: groups and warps of each program."""

    groups: int
    warps: int


WARP_BYTES = 512
"""What a warp loads at once, 16 bytes a lane."""
WARPS, LOADS = 4, 2
"""Of programs where there are many groups: their warps, and each one's loads of x."""
WIDE, WIDE_GROUPS = 512, 4
"""The widest groups that a warp takes alone, and how many of those that one load does not hold."""
ENOUGH = 132
"""The programs of many groups that there are at least: one for each processor of an H200."""


def norm_shape(num_groups: int, width: int, itemsize: int) -> NormShape:
    """The launch's shape for so many groups of all tokens, of `width` numbers.

    Few groups take small programs, so that all processors have some; of many, programs begin at too
    low a rate. In either shape a group's numbers are with as many lanes and warps, so that the
    shape changes no bits: a program has one load for each lane at least, and no group that one
    load of a warp does not hold is with other warps.
    """
    num_bytes = padded_lanes(width) * itemsize
    if width > WIDE:
        return NormShape(1, 4)
    if num_bytes > WARP_BYTES:
        few, many = NormShape(1, 1), NormShape(WIDE_GROUPS, 1)
    else:
        few = NormShape(WARP_BYTES // num_bytes, 1)
        many = NormShape(few.groups * WARPS * LOADS, WARPS)
    return many if num_groups >= many.groups * ENOUGH else few


@jit(do_not_specialize=["num_groups"])
def _gated_norm_kernel(
    x_ptr,
    gate_ptr,
    weight_ptr,
    out_ptr,
    gate_stride,
    num_groups,
    eps,
    weight_step: tl.constexpr,  # from a group's weights to the next one's
    groups: tl.constexpr,
    width: tl.constexpr,
    gate_first: tl.constexpr,
    sigmoid: tl.constexpr,
    GROUPS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program takes GROUPS of all tokens' groups; `width` of BLOCK lanes are real."""
    begin_next(overlap)
    at = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)[:, None]
    token, group = (at // groups).to(tl.int64), at % groups
    lanes = tl.arange(0, BLOCK)[None, :]
    inside = (lanes < width) & (at < num_groups)
    if weight_step:
        weight = tl.load(weight_ptr + group * weight_step + lanes, mask=inside, other=0.0)
    else:
        weight = tl.load(weight_ptr + lanes, mask=lanes < width, other=0.0)
    wait_for_last(overlap)
    to = at.to(tl.int64) * width + lanes
    x = tl.load(x_ptr + to, mask=inside, other=0.0)
    gate_at = gate_ptr + token * gate_stride + group * width + lanes
    gate = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
    factor = 1.0 / (1.0 + tl.exp(-gate))
    if not sigmoid:
        factor *= gate
    wide = x.to(tl.float32)
    if gate_first:
        wide *= factor
    wide *= tl.rsqrt(tl.sum(wide * wide, 1, keep_dims=True) / width + eps)
    wide *= weight.to(tl.float32)
    if not gate_first:
        wide *= factor
    tl.store(out_ptr + to, wide.to(x.dtype), mask=inside)


def gated_norm_triton(norm: GatedNorm, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Compute a gated norm in a kernel; x is contiguous, gate's groups lie one after another."""
    num_tokens, groups, width = x.shape
    assert x.is_contiguous()
    assert gate.stride()[1:] == (width, 1)
    out = torch.empty((num_tokens, groups * width), dtype=x.dtype, device=x.device)
    shape = norm_shape(num_tokens * groups, width, x.dtype.itemsize)
    _gated_norm_kernel[(triton.cdiv(num_tokens * groups, shape.groups),)](
        x,
        gate,
        norm.weight,
        out,
        gate.stride(0),
        num_tokens * groups,
        norm.eps,
        weight_step=width if norm.weight.dim() == 2 else 0,
        groups=groups,
        width=width,
        gate_first=norm.gate_first,
        sigmoid=norm.sigmoid,
        GROUPS=shape.groups,
        BLOCK=padded_lanes(width),
        num_warps=shape.warps,
        **overlap_of(x),
    )
    return out
