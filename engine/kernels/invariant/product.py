# mypy: allow-untyped-defs, allow-incomplete-defs
"""Products with a weight whose bits do not depend on how many rows are multiplied at once.

A matrix unit adds sixteen products of 16-bit numbers to a float32 sum in one fixed way, and a
product that takes its inner dimension in order, sixteen at a time, has one result, whatever tile it
is computed in, whichever operand is which, and whichever of Hopper's instructions (`mma.sync`,
`wgmma`) multiplies. What changes bits is a sum that is cut into parts (split-K). So the definition
is the uncut sum:

    up to `MOST_FEW` rows    the kernel here, a stream of weights past a tile of rows
    more                     the library, which `use_uncut_products` keeps from cutting sums

While weights load, `disagreement` compares the two on the device at hand; shapes for which the
library has other bits (small or odd ones) are left to the kernel. In float32 all rows go through
it, and it adds one product after the other. On a CPU rows are multiplied in blocks of `CPU_ROWS`,
padded where they are fewer, so that the library meets products of one shape only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

MOST_FEW = 64
"""Rows up to which the kernel multiplies; beyond, the library is faster even with its sums uncut
(measured on an H100; up to 32 rows the kernel is faster than the library with its sums cut)."""
ROW_TILES = (8, 16, 32, MOST_FEW)
"""Rows of a program, of as many variants of the kernel."""
ROW_COUNTS = (MOST_FEW + 1, 96, 128, 200, 256, 300, 384, 512, 1000, 2048)
"""Numbers of rows at which the library is compared with the kernel."""
MOST_CHECKED = 1 << 26
"""Most numbers of a result that are compared."""
CPU_ROWS = 8
"""Rows of a block on a CPU: more would waste more on padding, fewer read weights more often."""
IN_REGISTERS = 3072
"""Inner dimension up to which a program loads its whole weight before its input is there, if the
input has up to 8 rows; a third of it for more."""


class _Launch(NamedTuple):
    """How a product is cut: features of a tile, those of them that a program computes, rows of a
    program, inputs of a turn, warps, stages."""

    tile: int
    features: int
    rows: int
    step: int
    num_warps: int
    num_stages: int


def use_uncut_products() -> None:
    """Keep the library from cutting sums, for the rest of the process."""
    torch.backends.cuda.preferred_blas_library("cublaslt")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = (False, False)


class InvariantProduct:
    """Maps x [T, in] to x @ weight.T + bias [T, out], each row's bits its own.

    Args:
        weight: [out, in], contiguous. Where the library does not have the kernel's bits for its
            shape, the kernel multiplies any number of rows.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def __call__(
        self,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Multiply.

        Args:
            bias: [out], added to the float32 sum.
            out_dtype: of the result; None is x's. float32 keeps the sum as it is.
        """
        if not x.is_cuda:
            out = _by_blocks(x, self._weight, bias)
            return out if out_dtype is None else out.to(out_dtype)
        if len(x) <= MOST_FEW or not _agrees(self._weight, bias is not None):
            return few_rows_linear(x, self._weight, bias, out_dtype)
        return _library_linear(x, self._weight, bias, out_dtype)

    def compiled(
        self, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """The product with a bias and a result's dtype, whose kernels no request has to compile."""
        weight = self._weight
        key = (weight.device, weight.dtype, weight.shape, bias is None, out_dtype)
        if weight.is_cuda and key not in _compiled:
            _compiled.add(key)
            rows = weight.new_zeros((MOST_FEW, weight.shape[1]))
            for count in ROW_TILES:
                few_rows_linear(rows[:count], weight, bias, out_dtype)
            _agrees(weight, bias is not None)
        return partial(self, bias=bias, out_dtype=out_dtype)


def _library_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    if out_dtype is None or out_dtype == x.dtype:
        return F.linear(x, weight, bias)
    product = torch.mm(x, weight.t(), out_dtype=out_dtype)
    return product if bias is None else product + bias


_compiled: set[tuple[object, ...]] = set()
"""The variants of the kernel that were launched."""
_agreement: dict[tuple[torch.device, torch.dtype, torch.Size, bool], bool] = {}
"""Whether library and kernel agree, by what decides it: it is found once, while weights load."""


def _agrees(weight: torch.Tensor, has_bias: bool) -> bool:
    if weight.dtype == torch.float32:
        return False
    key = (weight.device, weight.dtype, weight.shape, has_bias)
    if key not in _agreement:
        _agreement[key] = disagreement(weight, has_bias) is None
    return _agreement[key]


def _by_blocks(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return in_blocks(x, lambda block: F.linear(block, weight, bias))


def in_blocks(x: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Compute rows of x [T, in] in blocks of `CPU_ROWS`, the last one padded with zeros."""
    num_rows = len(x)
    padded = F.pad(x, (0, 0, 0, -num_rows % CPU_ROWS))
    parts = [compute(block) for block in torch.split(padded, CPU_ROWS)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[:num_rows]


@jit
def _load_weight(weight, n, k, in_features, end):
    mask = (n < end)[:, None] & (k < in_features)[None, :]
    at = weight + n[:, None].to(tl.int64) * in_features + k[None, :]
    return tl.load(at, mask=mask, other=0.0)


@jit
def _load_rows(x, m, k, num_rows, in_features):
    """Load x transposed: [K, M]."""
    mask = (m < num_rows)[None, :] & (k < in_features)[:, None]
    return tl.load(x + m[None, :] * in_features + k[:, None], mask=mask, other=0.0)


@jit(do_not_specialize=["num_rows"])
def _few_rows_kernel(
    x,
    weight,
    bias,
    out,
    num_rows,
    in_features: tl.constexpr,
    out_features: tl.constexpr,
    TILE: tl.constexpr,  # noqa: N803
    FEATURES: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    STEP: tl.constexpr,  # noqa: N803
    parts: tl.constexpr,
    precision: tl.constexpr,
    overlap: tl.constexpr,
):
    """A program computes FEATURES output features of ROWS rows."""
    begin_next(overlap)
    n = tl.program_id(0) * FEATURES + tl.arange(0, TILE)
    end = tl.minimum((tl.program_id(0) + 1) * FEATURES, out_features)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, STEP)
    total = tl.zeros((TILE, ROWS), tl.float32)
    if parts > 0:
        tiles = ()
        for part in tl.static_range(parts):
            tile = _load_weight(weight, n, k + part * STEP, in_features, end)
            tiles += (tile,)  # type: ignore[assignment]  # it is unrolled
        wait_for_last(overlap)
        for part in tl.static_range(parts):
            rows = _load_rows(x, m, k + part * STEP, num_rows, in_features)
            total = tl.dot(tiles[part], rows, total, input_precision=precision)
    else:
        wait_for_last(overlap)
        for start in range(0, in_features, STEP):
            tile = _load_weight(weight, n, start + k, in_features, end)
            rows = _load_rows(x, m, start + k, num_rows, in_features)
            total = tl.dot(tile, rows, total, input_precision=precision)
    if bias is not None:
        own = tl.load(bias + n, mask=n < end, other=0.0).to(tl.float32)
        total += own[:, None]
    at = out + m[None, :].to(tl.int64) * out_features + n[:, None]
    mask = (m < num_rows)[None, :] & (n < end)[:, None]
    tl.store(at, total.to(out.dtype.element_ty), mask=mask)


def few_rows_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    launch: _Launch | None = None,
) -> torch.Tensor:
    """Compute what `InvariantProduct` does, in the kernel, for any number of rows."""
    num_rows, in_features = x.shape
    out_features = len(weight)
    assert x.is_contiguous()
    assert weight.is_contiguous()
    out = torch.empty((num_rows, out_features), dtype=out_dtype or x.dtype, device=x.device)
    launch = launch or _launch_of(num_rows, in_features, x.dtype)
    grid = (triton.cdiv(out_features, launch.features), triton.cdiv(num_rows, launch.rows))
    _few_rows_kernel[grid](
        x,
        weight,
        bias,
        out,
        num_rows,
        in_features=in_features,
        out_features=out_features,
        TILE=launch.tile,
        FEATURES=launch.features,
        ROWS=launch.rows,
        STEP=launch.step,
        # One stage: the whole weight of a program is in registers before its input is there.
        parts=triton.cdiv(in_features, launch.step) if launch.num_stages == 1 else 0,
        precision="ieee",
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        **overlap_of(x),
    )
    return out


def _launch_of(num_rows: int, in_features: int, dtype: torch.dtype) -> _Launch:
    """The shape that was fast on an H100; bits are the same with each."""
    if dtype == torch.float32:
        return _Launch(32, 32, 16, 32, 4, 2)
    rows = next((tile for tile in ROW_TILES if num_rows <= tile), MOST_FEW)
    if in_features <= (IN_REGISTERS if rows == 8 else IN_REGISTERS // 3):
        if rows == 64:
            return _Launch(64, 64, 64, 256, 4, 1)
        return _Launch(32, 32, rows, 256, 2, 1)
    if rows == 64:
        return _Launch(64, 32, 64, 128, 4, 6)
    return _Launch(16, 16, rows, 256, 1, 5)


def disagreement(weight: torch.Tensor, has_bias: bool = False) -> int | None:
    """The first number of rows at which library and kernel differ in a bit; None if at none.

    Args:
        weight: [out, in], on CUDA.
        has_bias: add a bias; the library may choose another of its kernels for that.
    """
    counts = [count for count in ROW_COUNTS if count * len(weight) <= MOST_CHECKED]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((max(counts), weight.shape[1]), generator=generator)
    x = x.to(weight.dtype).to(weight.device)
    bias = torch.randn(len(weight), generator=generator).to(x) if has_bias else None
    for out_dtype in (weight.dtype, torch.float32):
        wanted = few_rows_linear(x, weight, bias, out_dtype)
        for count in counts:
            some = _library_linear(x[:count], weight, bias, out_dtype)
            if not torch.equal(some, wanted[:count]):
                return count
    return None
