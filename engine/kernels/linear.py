"""Matrix products with weights laid out once for the machine they run on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.skinny import is_skinny, skinny_linear

Linear = Callable[[torch.Tensor], torch.Tensor]

SMALL_WEIGHTS = 1 << 18
"""Size up to which a CPU multiplies one row by the plain weight: such products take 6 to 27 us,
those by packed weights 21 to 39, as oneDNN looks for its code each time."""


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Make the function x [T, in] → x @ weight.T + bias [T, out] for weight [out, in].

    On a CPU, weights are packed for oneDNN: a third faster on tens of rows and several
    times on a few, because a plain product repacks the weight on each call. Small ones are kept as
    they are too, for single rows.
    """
    if weight.device.type == "cpu" and _can_be_packed(weight.dtype):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        small = weight if weight.numel() <= SMALL_WEIGHTS else None
        return partial(_packed_linear, packed, small, bias)
    return partial(_library_linear, weight, bias)


def _library_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor
) -> torch.Tensor:
    """Multiply by our kernel for a few rows on CUDA, where cuBLAS is slow, else by the library."""
    if is_skinny(x):
        return skinny_linear(x, weight, bias)[0]
    return F.linear(x, weight, bias)


def _packed_linear(
    packed: torch.Tensor, small: torch.Tensor | None, bias: torch.Tensor | None, x: torch.Tensor
) -> torch.Tensor:
    """Multiply with rows padded to one of few counts: oneDNN compiles code for each it meets.

    Args:
        small: the plain weight, by which one row is multiplied; None for the packed one.
    """
    num_rows = x.shape[0]
    if small is not None and num_rows == 1:
        return F.linear(x, small, bias)
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


def logits_linear(weight: torch.Tensor) -> Linear:
    """Make the function hidden [N, in] → float32 logits [N, vocab] for weight [vocab, in].

    On CUDA the products of bfloat16 or float16 are summed and returned in float32, never rounded
    to the narrow type; on a CPU they are computed in the weight's dtype.
    """
    if weight.is_cuda and weight.dtype != torch.float32:
        transposed = weight.t()
        return lambda hidden: torch.mm(hidden, transposed, out_dtype=torch.float32)
    product = linear(weight)
    return lambda hidden: product(hidden).float()
