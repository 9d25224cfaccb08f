# mypy: allow-untyped-defs, allow-incomplete-defs
"""The gate of the expert that all tokens take: its output times the sigmoid of a product.

    y[t] = sigmoid(weight · x[t]) out[t]

On a GPU in float32 and rounded once; in plain torch the product and its sigmoid are rounded too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.invariant.functions import elementwise
from engine.kernels.linear import Linear
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

COLUMNS = 1024
"""Number of columns that a program computes."""


class SharedGate(NamedTuple):
    """A gate's weight [1, hidden].

    Attributes:
        invariant: the product, where a row's bits may not depend on the number of rows.
    """

    weight: torch.Tensor
    invariant: Linear | None = None

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Gate the expert's output [T, hidden] of x [T, hidden]; both are contiguous."""
        if x.is_cuda and self.invariant is None:
            return shared_gate_triton(x, self.weight, out)
        return shared_gate_torch(x, self, out)


def shared_gate_torch(x: torch.Tensor, gate: SharedGate, out: torch.Tensor) -> torch.Tensor:
    product = F.linear(x, gate.weight) if gate.invariant is None else gate.invariant(x)
    return elementwise(torch.sigmoid, product) * out


@jit
def _shared_gate_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    gated_ptr,
    width: tl.constexpr,
    BLOCK_K: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program computes BLOCK of a token's columns, and the token's product for itself."""
    begin_next(overlap)
    k = tl.arange(0, BLOCK_K)
    weight = tl.load(weight_ptr + k, mask=k < width, other=0.0).to(tl.float32)
    at = tl.program_id(0).to(tl.int64) * width
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    wait_for_last(overlap)
    x = tl.load(x_ptr + at + k, mask=k < width, other=0.0).to(tl.float32)
    gate = 1.0 / (1.0 + tl.exp(-tl.sum(x * weight, 0)))
    out = tl.load(out_ptr + at + columns, mask=columns < width, other=0.0)
    gated = (gate * out.to(tl.float32)).to(out.dtype)
    tl.store(gated_ptr + at + columns, gated, mask=columns < width)


def shared_gate_triton(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Compute a gate in a kernel; all tensors are contiguous."""
    assert x.is_contiguous()
    assert out.is_contiguous()
    num_tokens, width = x.shape
    gated = torch.empty_like(out)
    _shared_gate_kernel[(num_tokens, triton.cdiv(width, COLUMNS))](
        x,
        weight,
        out,
        gated,
        width=width,
        BLOCK_K=triton.next_power_of_2(width),
        BLOCK=COLUMNS,
        num_warps=4,
        **overlap_of(x),
    )
    return gated
