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
from sampling.device.triton_support import jit, padded_lanes, tl


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


@jit
def _gated_norm_kernel(
    x_ptr,
    gate_ptr,
    weight_ptr,
    out_ptr,
    gate_stride,
    width,
    eps,
    weight_step,  # from a group's weights to the next one's
    gate_first: tl.constexpr,
    sigmoid: tl.constexpr,
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program takes a group of a token; `width` of its BLOCK lanes are real."""
    begin_next(overlap)
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < width
    weight = tl.load(weight_ptr + group * weight_step + lanes, mask=inside, other=0.0)
    wait_for_last(overlap)
    at = (token * tl.num_programs(1) + group) * width + lanes
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    gate_at = gate_ptr + token * gate_stride + group * width + lanes
    gate = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
    factor = 1.0 / (1.0 + tl.exp(-gate))
    if not sigmoid:
        factor *= gate
    wide = x.to(tl.float32)
    if gate_first:
        wide *= factor
    wide *= tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    wide *= weight.to(tl.float32)
    if not gate_first:
        wide *= factor
    tl.store(out_ptr + at, wide.to(x.dtype), mask=inside)


def gated_norm_triton(norm: GatedNorm, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Compute a gated norm in a kernel; x is contiguous, gate's groups lie one after another."""
    num_tokens, groups, width = x.shape
    assert x.is_contiguous()
    assert gate.stride()[1:] == (width, 1)
    out = torch.empty((num_tokens, groups * width), dtype=x.dtype, device=x.device)
    _gated_norm_kernel[(num_tokens, groups)](
        x,
        gate,
        norm.weight,
        out,
        gate.stride(0),
        width,
        norm.eps,
        width if norm.weight.dim() == 2 else 0,
        gate_first=norm.gate_first,
        sigmoid=norm.sigmoid,
        BLOCK=padded_lanes(width),
        num_warps=4 if width > 512 else 1,
        **overlap_of(x),
    )
    return out
