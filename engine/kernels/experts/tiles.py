# mypy: allow-untyped-defs, allow-incomplete-defs
"""The tile of a program of a grouped product: its expert, its pairs, and what it stores.

Letters in comments: N a tile's output features, M its pairs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from engine.kernels.experts.gates import join, plus_delta
from sampling.device.triton_support import constexpr, jit, tl

PLACE_BITS = 26
"""Of a place in the order: `find` makes one number of two places and an expert."""
_BITS, _ALL_ONES = constexpr(PLACE_BITS), constexpr((1 << PLACE_BITS) - 1)


class _Found(NamedTuple):
    """A program's tile: its expert and places in the order; values within the kernel."""

    expert: Any
    begin: Any
    end: Any


@jit
def find(
    starts,
    tile,
    num_experts: tl.constexpr,
    EXPERTS: tl.constexpr,  # noqa: N803
    M: tl.constexpr,  # noqa: N803
    MORE: tl.constexpr = 0,  # noqa: N803
):
    """Find a tile's expert, num_experts or more where there is no such tile, and its places.

    An expert's tiles have M pairs, its last one up to MORE beyond them; places end with the expert.
    """
    e = tl.arange(0, EXPERTS)
    inside = e < num_experts
    begins = tl.load(starts + e, mask=inside, other=0)
    ends = tl.load(starts + e + 1, mask=inside, other=0)
    counts = ends - begins
    num_tiles = (tl.maximum(counts - MORE, tl.minimum(counts, 1)) + M - 1) // M
    before = tl.cumsum(num_tiles, 0) - num_tiles
    is_it = (tile >= before) & (tile < before + num_tiles)
    # Both places and the expert are one number, since at each sum all warps wait.
    begins += (tile - before) * M
    known = ((num_experts - e).to(tl.int64) << _BITS) + begins
    known = tl.sum(tl.where(is_it, (known << _BITS) + ends, 0), 0)
    expert = num_experts - (known >> (2 * _BITS)).to(tl.int32)
    begin = ((known >> _BITS) & _ALL_ONES).to(tl.int32)
    return _Found(expert, begin, (known & _ALL_ONES).to(tl.int32))


@jit
def after(found, M: tl.constexpr):  # noqa: N803
    """What is left of a tile's places after the first M."""
    return _Found(found.expert, found.begin + M, found.end)


class _Lanes(NamedTuple):
    """What the lanes of a tile stand for; values within the kernel.

    Attributes:
        channel: [N], the output feature of each, and here: whether there is one.
        row: [N], the weight's row of each; that of the last where there is none.
        source: [M], the input's row of each pair. target: [M], the output's, and real: whether
            there is one.
    """

    channel: Any
    here: Any
    row: Any
    source: Any
    target: Any
    real: Any


@jit
def lanes_of(
    n,
    found,
    order,
    channels: tl.constexpr,
    top_k: tl.constexpr,
    gate: tl.constexpr,
    products: tl.constexpr,
    M: tl.constexpr,  # noqa: N803
):
    """Find what lanes stand for that have the output features n [N], see `grouped_linear`."""
    places = found.begin + tl.arange(0, M)
    real, here = places < found.end, n < channels
    places = tl.minimum(places, found.end - 1)
    pairs = tl.load(order + places)
    sources = (pairs // top_k if gate is not None else places).to(tl.int64)
    targets = places if gate is not None else pairs
    row = found.expert.to(tl.int64) * (products * channels) + tl.minimum(n, channels - 1)
    return _Lanes(n, here, row, sources, targets, real)


@jit
def store_products(
    total,
    ups,
    bias,
    delta,
    out,
    lanes,
    channels: tl.constexpr,
    gate: tl.constexpr,
    products: tl.constexpr,
):
    """Add biases to products [N, M], join gate and up where there is a gate, and store them.

    With a gate `delta` [places, products * channels] is added first, where it is not zero.
    """
    if bias is not None:
        total += tl.load(bias + lanes.row).to(tl.float32)[:, None]
    if gate is not None:
        if bias is not None and products == 2:
            ups += tl.load(bias + lanes.row + channels).to(tl.float32)[:, None]
        if delta is not None:
            both = lanes.here[:, None] & lanes.real[None, :]
            own = lanes.target[None, :].to(tl.int64) * (products * channels)
            own = delta + own + lanes.channel[:, None]
            total = plus_delta(total, own, both)
            if products == 2:
                ups = plus_delta(ups, own + channels, both)
        total = join(total, ups, gate)
    at = lanes.target[:, None].to(tl.int64) * channels + lanes.channel[None, :]
    mask = lanes.real[:, None] & lanes.here[None, :]
    tl.store(out + at, tl.trans(total.to(out.dtype.element_ty)), mask=mask)
