# mypy: allow-untyped-defs, allow-incomplete-defs
"""Numbers in float8 (e4m3) beside float32 scales: a scale a token, a scale an output channel.

A row v becomes s = max(|v|, TINY) / 448 and q = round(v / s), so that its largest value is
the largest of the format and s * q is within s * 448 / 16 / 2 of v: e4m3 has three bits after the
leading one. The rounding is to nearest, ties to even, on every device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import INTERPRETED, constexpr, jit, tl, triton

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
"""The largest number of the format."""
TINY = 1e-12
"""The least maximum of a row that a scale is made for: rows of zeros keep a finite scale."""
TILE = 128
"""Rows that the library's product takes at a time."""

_LARGEST, _TINY, _INTERPRETED = constexpr(LARGEST), constexpr(TINY), constexpr(INTERPRETED)


class Fp8Rows(NamedTuple):
    """Rows in float8, each times its own scale.

    Attributes:
        values: e4m3 [n, k], contiguous.
        scales: float32 [n].
    """

    values: torch.Tensor
    scales: torch.Tensor

    def dequantized(self) -> torch.Tensor:
        """The rows' values as float32 [n, k]."""
        return self.values.float() * self.scales[:, None]


def quantize_rows(x: torch.Tensor) -> Fp8Rows:
    """Quantize each row of x [n, k]: tokens of an activation, or output channels of a weight."""
    return quantize_rows_triton(x) if x.is_cuda else quantize_rows_torch(x)


def quantize_rows_torch(x: torch.Tensor) -> Fp8Rows:
    wide = x.float()
    scales = over_largest(wide.abs().amax(-1))
    return Fp8Rows((wide / scales[:, None]).to(FP8), scales)


def over_largest(maxima: torch.Tensor) -> torch.Tensor:
    """The scales of rows with these largest magnitudes.

    torch divides by a tensor: by a plain number it multiplies with its reciprocal on CUDA, which
    is another number now and then.
    """
    return maxima.clamp(min=TINY) / torch.full_like(maxima, LARGEST)


def quantize_rows_within(x: torch.Tensor, *, scale: float | None, largest: float | None) -> Fp8Rows:
    """Quantize rows as some checkpoints ask for, in plain torch.

    Args:
        x: [n, k].
        scale: of all rows, made when the checkpoint was; numbers beyond its range are cut off.
        largest: without `scale`, numbers beyond it are cut off before a row's scale is made.
    """
    wide = x.float()
    if scale is None:
        wide = wide if largest is None else wide.clamp(-largest, largest)
        return quantize_rows(wide)
    return quantize_rows_by(wide, torch.full((len(x),), scale, device=x.device))


def quantize_rows_by(x: torch.Tensor, scales: torch.Tensor) -> Fp8Rows:
    """Quantize rows of x [n, k] by given scales, float32 [n], in plain torch.

    Numbers beyond a scale's range become the largest that it has.
    """
    values = (x.float() / scales[:, None]).clamp(-LARGEST, LARGEST).to(FP8)
    return Fp8Rows(values, scales)


@jit
def _over(values, scale):
    """Divide float32 values by scales of their shape, as exactly as e4m3 can tell.

    A division takes some ten instructions and a branch. A reciprocal leaves products that are
    within 2^-22 of the quotients, and the line after it within 2^-45 before it rounds. A quotient
    of two float32 numbers that lies between two neighbours of five bits, where e4m3 rounds up or
    down, but not in their middle, is 2^-29 or more from it: it is rounded as the quotient would be.
    """
    if _INTERPRETED:  # it rounds twice where a GPU rounds once
        return tl.div_rn(values, tl.broadcast_to(scale, values.shape))
    reciprocal = tl.broadcast_to(tl.div_rn(1.0, scale), values.shape)
    quotients = values * reciprocal
    rest = tl.fma(-quotients, tl.broadcast_to(scale, values.shape), values)
    return tl.fma(rest, reciprocal, quotients)


@jit
def quantized(values):
    """Quantize a row of float32 values held by one program: e4m3 values and their scale."""
    # Divided to nearest, as on a CPU: in bfloat16 many quotients lie in the middle of two numbers.
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(values), 0), _TINY), _LARGEST)
    values = _over(values, scale)
    if _INTERPRETED:  # it loses the carry of a mantissa that rounds up to the next power of two
        values = _rounded(values)
    return values.to(tl.float8e4nv), scale


@jit
def quantized_spans(values):
    """Quantize each row of float32 values [n, k] held by one program: values and scales [n]."""
    scales = tl.div_rn(tl.maximum(tl.max(tl.abs(values), 1), _TINY), _LARGEST)
    values = _over(values, scales[:, None])
    if _INTERPRETED:
        values = _rounded(values)
    return values.to(tl.float8e4nv), scales


@jit
def stored_fp8(values, scale):
    """Round values over a scale to e4m3; beyond its largest number they become that."""
    scaled = tl.div_rn(values.to(tl.float32), scale)
    scaled = tl.clamp(scaled, -_LARGEST, _LARGEST, propagate_nan=tl.PropagateNan.ALL)
    if _INTERPRETED:
        scaled = _rounded(scaled)
    return scaled.to(tl.float8e4nv)


@jit
def _rounded(values):
    """Round float32 values to numbers of the format, by sums that leave as many bits as it has."""
    far = values * (2.0**20 + 1.0)
    return tl.where(
        tl.abs(values) < 2.0**-6, (values + 1.5 * 2.0**14) - 1.5 * 2.0**14, far - (far - values)
    )


@jit
def _quantize_rows_kernel(
    x_ptr,
    values_ptr,
    scales_ptr,
    x_stride,
    width,
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program takes a row; `width` of its BLOCK columns are real."""
    begin_next(overlap)
    wait_for_last(overlap)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    values, scale = quantized(x)
    tl.store(values_ptr + row * width + columns, values, mask=inside)
    tl.store(scales_ptr + row, scale)


def quantize_rows_triton(x: torch.Tensor) -> Fp8Rows:
    """Quantize rows in a kernel; x has unit column stride."""
    num_rows, width = x.shape
    assert x.stride(1) == 1
    rows = empty_rows(num_rows, width, x.device)
    _quantize_rows_kernel[(num_rows,)](
        x,
        rows.values,
        rows.scales,
        x.stride(0),
        width,
        **row_launch(x),
    )
    return rows


def row_launch(x: torch.Tensor, width: int | None = None) -> dict[str, Any]:
    """Launch options of a kernel in which a program takes a row of x [n, k], or `width` columns."""
    block = triton.next_power_of_2(x.shape[1] if width is None else width)
    return {"BLOCK": block, "num_warps": min(max(block // 512, 1), 16), **overlap_of(x)}


def empty_rows(num_rows: int, width: int, device: torch.device) -> Fp8Rows:
    """Allocate rows for a kernel to write, with room after them to the end of a `TILE`."""
    room = triton.cdiv(num_rows, TILE) * TILE
    values = torch.empty((room, width), dtype=FP8, device=device)
    return Fp8Rows(values[:num_rows], torch.empty(room, device=device)[:num_rows])


def in_whole_tiles(rows: Fp8Rows) -> Fp8Rows:
    """The rows, and after them to the end of a `TILE` whatever is in memory, if there is room.

    The library multiplies 256 rows faster than 144 (3.8 and 5.1 ms for an 8B model's layers on an
    H200); what it makes of the others is thrown away.
    """
    num_rows, width = rows.values.shape
    room = triton.cdiv(num_rows, TILE) * TILE
    has_room = all(
        part.is_contiguous()
        and part.untyped_storage().nbytes() // part.itemsize
        >= part.storage_offset() + room * (part.numel() // num_rows)
        for part in rows
    )
    if not has_room:
        return rows
    values = rows.values.as_strided((room, width), (width, 1))
    return Fp8Rows(values, rows.scales.as_strided((room,), (1,)))
