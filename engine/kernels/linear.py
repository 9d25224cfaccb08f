"""Matrix products with weights laid out once for the machine they run on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.invariant.product import InvariantProduct
from engine.kernels.skinny import is_skinny, skinny_linear

Linear = Callable[[torch.Tensor], torch.Tensor]
_Multiply = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor], torch.Tensor]

FEW_INPUTS, SMALL_WEIGHTS = 512, 1 << 21
"""Inputs and size up to which a CPU multiplies by the transposed weight as it is: a row by 512
outputs takes 7 us in place of oneDNN's 30, which looks for its code each time, 32 rows 49 us in
place of 89. Larger weights come from memory, and packed ones come faster on 8 and 16 rows."""


class LaidOut:
    """A weight [out, in], laid out once for the machine that multiplies by it.

    On a CPU, small weights of float32 are transposed, and all others packed for oneDNN: a plain
    product repacks the weight on each call. Elsewhere they are stored as they are.

    Attributes:
        invariant: the product whose rows have bits of their own; None where that was not asked for.
    """

    def __init__(self, weight: torch.Tensor, *, invariant: bool = False) -> None:
        self._stored = weight
        self._multiply: _Multiply = _library_linear
        self.invariant: InvariantProduct | None = None
        if invariant:
            self._stored = weight.contiguous()
            self.invariant = InvariantProduct(self._stored)
        elif weight.device.type == "cpu" and _is_small(weight):
            self._multiply, self._stored = _transposed_linear, weight.t().contiguous()
        elif weight.device.type == "cpu" and _can_be_packed(weight.dtype):
            self._stored = torch.ops.mkldnn._reorder_linear_weight(weight)
            self._multiply = _packed_linear

    @property
    def is_narrow_on_cuda(self) -> bool:
        """Whether it is of 16 bits, on a GPU, and products may depend on the number of rows."""
        stored = self._stored
        return self.invariant is None and stored.is_cuda and stored.dtype != torch.float32

    def linear(self, bias: torch.Tensor | None = None) -> Linear:
        """Make the function x [T, in] → x @ weight.T + bias [T, out]."""
        if self.invariant is not None:
            return self.invariant.compiled(bias)
        return partial(self._multiply, self._stored, bias)

    def plain(self) -> torch.Tensor:
        """The weight [out, in]: the one that products read, or a copy where it is packed."""
        if self._multiply is _transposed_linear:
            return self._stored.t()
        return self._stored.to_dense() if self._multiply is _packed_linear else self._stored

    def assign(self, weight: torch.Tensor) -> None:
        """Write a weight [out, in] in the place of this one; all products read the new one."""
        if self._multiply is _packed_linear:
            self._stored.copy_(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()))
        elif weight.data_ptr() != self._stored.data_ptr():  # else it was written in place
            self.plain().copy_(weight)


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Make the function x [T, in] → x @ weight.T + bias [T, out] for weight [out, in]."""
    return LaidOut(weight).linear(bias)


def _is_small(weight: torch.Tensor) -> bool:
    is_narrow = weight.shape[1] <= FEW_INPUTS and weight.numel() <= SMALL_WEIGHTS
    return weight.dtype == torch.float32 and is_narrow


def _library_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor
) -> torch.Tensor:
    """Multiply by our kernel for a few rows on CUDA, where cuBLAS is slow, else by the library."""
    if is_skinny(x):
        return skinny_linear(x, weight, bias)[0]
    return F.linear(x, weight, bias)


def _transposed_linear(
    transposed: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor
) -> torch.Tensor:
    return torch.mm(x, transposed) if bias is None else torch.addmm(bias, x, transposed)


def _packed_linear(
    packed: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor
) -> torch.Tensor:
    """Multiply with rows padded to one of few counts: oneDNN compiles code for each it meets."""
    num_rows = x.shape[0]
    padded_rows = round_rows(num_rows)
    if padded_rows > num_rows:
        x = F.pad(x, (0, 0, 0, padded_rows - num_rows))
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return out[:num_rows]


def round_rows(num_rows: int) -> int:
    """Round up to a count with three significant bits: 1 to 8, 10, 12, 14, 16, 20, ..."""
    step = 1 << max(num_rows.bit_length() - 3, 0)
    return -(-num_rows // step) * step


def _can_be_packed(dtype: torch.dtype) -> bool:
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def logits_linear(weight: LaidOut) -> Linear:
    """Make the function hidden [N, in] → float32 logits [N, vocab] for weight [vocab, in].

    On CUDA the products of bfloat16 or float16 are summed and returned in float32, never rounded
    to the narrow type; on a CPU they are computed in the weight's dtype.
    """
    if weight.invariant is not None:
        return weight.invariant.compiled(out_dtype=torch.float32)
    if weight.is_narrow_on_cuda:
        transposed = weight.plain().t()
        return lambda hidden: torch.mm(hidden, transposed, out_dtype=torch.float32)
    product = weight.linear()
    return lambda hidden: product(hidden).float()
