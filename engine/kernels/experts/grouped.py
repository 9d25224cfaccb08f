# mypy: allow-untyped-defs, allow-incomplete-defs
"""Experts' products of many tokens: pairs grouped by expert, in tiles of one expert each.

How many tiles an expert has is known on the device alone. A launch has as many programs as any
grouping may need, each finds its tile from the groups' starts, and those left over end. The
weight's rows are the wide side of the tensor cores' tile and the tokens the narrow one, so that few
tokens waste little; a sum's order depends on neither. Sums are float32; of float8 numbers the
tensor cores keep about 14 bits (Hopper), so that those of `SPAN` products are added in float32.

Letters in comments: P pairs of a token and an expert, N a tile's output features, M its pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.kernels.experts.gates import num_products
from engine.kernels.experts.groups import Groups
from engine.kernels.experts.tiles import after, find, lanes_of, store_products
from engine.kernels.experts.weights import DenseExperts, Fp8Experts
from engine.kernels.fp8 import Fp8Rows
from engine.kernels.quantized.fp8_blocks import SPAN, Fp8Blocks
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, padded_lanes, tl, triton

MIN_PAIRS, MAX_PAIRS = 16, 128
"""Smallest and largest number of pairs in a tile."""
MORE_PAIRS = 32
"""Beyond `MAX_PAIRS`, in an expert's last tile: of experts with 256 pairs, give or take 16, half
have some 13 more than two tiles hold, and a third tile takes as long as one that is full."""

WIDE = 256
"""Output features of the widest tile."""


class Tile(NamedTuple):
    """The launch of a grouped product.

    Attributes:
        pairs, rows, depth: M, N, and input features of one step of the loop.
        more: pairs that an expert's last tile may have beyond M, in place of a tile of their own.
    """

    pairs: int
    rows: int
    depth: int
    stages: int
    warps: int
    more: int = 0


class _Operands(NamedTuple):
    """What a product is made of, as of `grouped_linear`; one kernel argument."""

    x: torch.Tensor
    x_scales: torch.Tensor | None
    weight: torch.Tensor
    weight_scales: torch.Tensor | None
    bias: torch.Tensor | None
    delta: torch.Tensor | None
    out: torch.Tensor


class _Sizes(NamedTuple):
    """What a kernel is compiled for; `products` are those that its gate joins."""

    features: int
    channels: int
    num_spans: int
    num_experts: int
    top_k: int
    gate: str | None
    products: int


@jit
def _load(pointers, inside, even: tl.constexpr):
    """Load a tile, whole where the loop's steps are even."""
    return tl.load(pointers) if even else tl.load(pointers, mask=inside, other=0.0)


@jit
def _add(total, w_tile, x_tile, scales, own, precision: tl.constexpr):
    """Add the products of a step of the loop; with scales of its span, times these."""
    if x_tile.dtype.primitive_bitwidth == 8:
        part = tl.dot(w_tile, tl.trans(x_tile))
        total += part if scales is None else part * tl.load(scales)[:, None] * own[None, :]
    else:
        total = tl.dot(w_tile, tl.trans(x_tile), total, input_precision=precision)
    return total


@jit
def _scaled(total, weight_scales, row, x_scales, source):
    """A sum of products of rounded numbers, times the scales of its rows."""
    return total * tl.load(weight_scales + row)[:, None] * tl.load(x_scales + source)[None, :]


@jit
def _tile_products(
    operands,
    order,
    found,
    sizes: tl.constexpr,
    tile: tl.constexpr,
    precision: tl.constexpr,
    MORE: tl.constexpr,  # noqa: N803
):
    """Compute N output features of the pairs of a tile: of M at most, and MORE after these."""
    M: tl.constexpr = tile.pairs  # noqa: N806
    N: tl.constexpr = tile.rows  # noqa: N806
    depth: tl.constexpr = tile.depth
    features: tl.constexpr = sizes.features
    channels: tl.constexpr = sizes.channels
    num_spans: tl.constexpr = sizes.num_spans
    products: tl.constexpr = sizes.products
    gate: tl.constexpr = sizes.gate
    top_k: tl.constexpr = sizes.top_k
    x, x_scales = operands.x, operands.x_scales
    weight, weight_scales = operands.weight, operands.weight_scales
    bias, delta, out = operands.bias, operands.delta, operands.out
    n = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, depth)
    lanes = lanes_of(n, found, order, channels, top_k, gate, products, M)
    row = lanes.row
    w_ptr = weight + row[:, None] * features + k[None, :]
    x_ptr = x + lanes.source[:, None] * features + k[None, :]
    total = tl.zeros((N, M), tl.float32)
    ups = tl.zeros((N, M), tl.float32)
    if MORE:
        beyond = lanes_of(n, after(found, M), order, channels, top_k, gate, products, MORE)
        y_ptr = x + beyond.source[:, None] * features + k[None, :]
        more = tl.zeros((N, MORE), tl.float32)
        more_ups = tl.zeros((N, MORE), tl.float32)
    scales, up_scales = None, None
    if num_spans > 0:
        scales = weight_scales + row * num_spans
        up_scales = scales + channels * num_spans
    steps: tl.constexpr = (features + depth - 1) // depth
    even: tl.constexpr = features % depth == 0
    for step in tl.range(0, steps, num_stages=tile.stages):
        inside = (k + step * depth < features)[None, :]
        x_tile = tl.load(x_ptr, mask=lanes.real[:, None] & (even | inside), other=0.0)
        own = tl.load(x_scales + lanes.source * num_spans + step) if num_spans > 0 else None
        w_tile = _load(w_ptr, inside, even)
        total = _add(total, w_tile, x_tile, scales, own, precision)
        if MORE:
            y_tile = tl.load(y_ptr, mask=beyond.real[:, None] & (even | inside), other=0.0)
            more = _add(more, w_tile, y_tile, None, None, precision)
        if products == 2:
            u_tile = _load(w_ptr + channels * features, inside, even)
            ups = _add(ups, u_tile, x_tile, up_scales, own, precision)
            if MORE:
                more_ups = _add(more_ups, u_tile, y_tile, None, None, precision)
        if num_spans > 0:
            scales += 1  # type: ignore[operator]
            up_scales += 1  # type: ignore[operator]
        w_ptr += depth
        x_ptr += depth
        if MORE:
            y_ptr += depth
    if weight_scales is not None and num_spans == 0:
        total = _scaled(total, weight_scales, row, x_scales, lanes.source)
        if products == 2:
            ups = _scaled(ups, weight_scales, row + channels, x_scales, lanes.source)
    store_products(total, ups, bias, delta, out, lanes, channels, gate, products)
    if MORE:
        store_products(more, more_ups, bias, delta, out, beyond, channels, gate, products)


@jit
def _grouped_kernel(
    operands,
    groups,
    sizes: tl.constexpr,
    precision: tl.constexpr,
    EXPERTS: tl.constexpr,  # noqa: N803
    tile: tl.constexpr,
    overlap: tl.constexpr,
):
    """A program computes N output features of a tile's pairs.

    With a gate, of tokens to places: the products that it joins. Without, of places to pairs.
    """
    begin_next(overlap)
    wait_for_last(overlap)
    tile_id = tl.program_id(1)
    found = find(groups.starts, tile_id, sizes.num_experts, EXPERTS, tile.pairs, tile.more)
    if found.expert >= sizes.num_experts:
        return
    count = found.end - found.begin
    if tile.more == 0:
        _tile_products(operands, groups.order, found, sizes, tile, precision, 0)
    elif (count > tile.pairs) & (count <= tile.pairs + tile.more):
        _tile_products(operands, groups.order, found, sizes, tile, precision, tile.more)
    else:
        _tile_products(operands, groups.order, found, sizes, tile, precision, 0)


def grouped_linear(
    x: torch.Tensor | Fp8Rows | Fp8Blocks,
    weight: DenseExperts | Fp8Experts,
    bias: torch.Tensor | None,
    groups: Groups,
    top_k: int,
    gate: str | None,
    tile: Tile | None = None,
    dtype: torch.dtype | None = None,
    delta: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply each pair's input by its expert's weight.

    With a gate: x [T, in] of tokens to joined products [P, out] by place. Without: x [P, in] by
    place to products [P, out] by pair.

    Args:
        x: rounded as `weight` asks, where that is in float8.
        weight: [experts, out, in]; with a gate that joins two products [experts, 2 * out, in], gate
            rows, then up rows. bias: [experts, out or 2 * out].
        top_k: number of pairs that each row of x has, with a gate.
        delta: [P, channels of weight] by place, added ahead of a gate, where it is not zero.
        tile: None takes one that was measured to be fast.
        dtype: of the result, for x that is rounded; else it is that of x.
    """
    num_pairs, (num_experts, channels, features) = len(groups.order), weight.shape
    channels //= num_products(gate)
    tile = tile or _tile(num_pairs, weight, gate)
    # An expert's last tile may be partly empty; one with no pairs has none.
    num_tiles = min(num_pairs, num_pairs // tile.pairs + num_experts)
    values, scales = (x, None) if isinstance(x, torch.Tensor) else x
    dtype = dtype or values.dtype
    assert tile.more == 0 or scales is None
    out = torch.empty((num_pairs, channels), dtype=dtype, device=values.device)
    _grouped_kernel[(triton.cdiv(channels, tile.rows), num_tiles)](
        _Operands(values, scales, weight.values, weight.scales, bias, delta, out),
        groups,
        sizes=_Sizes(
            *(features, channels, weight.num_spans, num_experts, top_k),
            *(gate, num_products(gate)),
        ),
        precision="ieee" if dtype == torch.float32 else "tf32",
        EXPERTS=padded_lanes(num_experts),
        tile=tile,
        num_warps=tile.warps,
        **overlap_of(values),
    )
    return out


def _tile(num_pairs: int, weight: DenseExperts | Fp8Experts, gate: str | None) -> Tile:
    num_experts, channels, _ = weight.shape
    if weight.scales is not None:
        gated, by_spans = num_products(gate) == 2, weight.num_spans > 0
        return fp8_tile_of(num_pairs, num_experts, gated=gated, by_spans=by_spans)
    if weight.values.dtype == torch.float32:  # shared memory has no room for the others
        return Tile(min(_expected_pairs(num_pairs, num_experts), 64), 64, 32, 3, 4)
    return tile_of(num_pairs, num_experts, channels, gate)


def _expected_pairs(num_pairs: int, num_experts: int) -> int:
    """Pairs of a tile that holds most experts' pairs, up to a bound."""
    expected = triton.next_power_of_2(2 * triton.cdiv(num_pairs, num_experts))
    return int(min(max(expected, MIN_PAIRS), MAX_PAIRS))


def tile_of(num_pairs: int, num_experts: int, channels: int, gate: str | None) -> Tile:
    """The fast launch for a number of pairs and a weight's rows.

    A tile of 256 rows reads its tokens half as often, where no rows are left over.
    """
    pairs = _expected_pairs(num_pairs, num_experts)
    if pairs < MAX_PAIRS:
        return Tile(pairs, 64, 64, 4, 4)
    if num_products(gate) == 2:
        return Tile(pairs, 128, 64, 4, 8, MORE_PAIRS)
    if gate is not None:
        return Tile(pairs, 128, 64, 3, 8, MORE_PAIRS)
    if channels % WIDE == 0:
        return Tile(pairs, WIDE, 64, 4, 8, MORE_PAIRS)
    return Tile(pairs, 128, 64, 3, 8, MORE_PAIRS // 2)  # two programs share a processor


def fp8_tile_of(num_pairs: int, num_experts: int, *, gated: bool, by_spans: bool) -> Tile:
    """The launch for a number of pairs in float8, a step of whose loop is a span."""
    pairs = _expected_pairs(num_pairs, num_experts)
    if by_spans:  # sums of a span and of all take registers
        return Tile(min(pairs, 64), 64, SPAN, 4 if pairs < 64 else 3, 4)
    if pairs == MAX_PAIRS and gated:
        return Tile(pairs, 128, SPAN, 3, 8)
    return Tile(min(pairs, 64), 64, SPAN, 4, 4)
