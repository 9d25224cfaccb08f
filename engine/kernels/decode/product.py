# mypy: allow-untyped-defs, allow-incomplete-defs
"""The newest token of a row in the decode kernel: taken from the QKV product it was made by.

The kernel then normalizes and rotates what it reads, as `rope.rope_and_store` does, and the newest
key and value go from the product into the softmax and to their cells at once, rounded where the
cache rounds: a launch less a layer, and no queries or keys on their way through memory.

Letters in comments as in `attention`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from engine.kernels.fp8 import stored_fp8
from engine.kernels.norm import by_weight
from engine.kernels.pages import LOG2E, capped
from sampling.device.triton_support import jit, tl


class Product(NamedTuple):
    """A QKV product and what is done with it; one kernel argument.

    Attributes:
        qkv: [R, width * D]. norm, eps, num_between: as in `Heads`. table: as in `Rotation`.
    """

    qkv: torch.Tensor
    norm: torch.Tensor | None
    table: torch.Tensor
    eps: float
    num_between: int


class _Turn(NamedTuple):
    """What heads are rotated with; values within the kernel."""

    cos: Any  # [1, D]
    sin: Any  # [1, D], negative in the lower half
    weight: Any  # [M, D], of the norm
    partner_weight: Any  # [M, D], of the lane that each is paired with


class _Newest(NamedTuple):
    """How the newest token's heads are rotated, and its slot; values within the kernel."""

    queries: Any
    key: Any
    slot: Any


class _Heads(NamedTuple):
    """Heads as the product has them; values within the kernel."""

    lanes: Any  # [M, D]
    partners: Any  # [M, D], the lane that each is paired with


@jit
def load_newest(product, positions, slots, row, head, shape: tl.constexpr):
    """Load what a row's queries and key are rotated with and where the key goes.

    No kernel in flight writes any of it.
    """
    position = tl.load(positions + row)
    heads, mask = _query_heads(head, shape)
    queries = _load_turn(product, position, heads, mask, shape)
    heads, mask = _key_head(head, shape)
    key = _load_turn(product, position, heads, mask, shape)
    return _Newest(queries, key, tl.load(slots + row))


@jit
def _query_heads(head, shape: tl.constexpr):
    """The heads of a key head's queries [M], and the mask of those there are [M, D]."""
    m, d = tl.arange(0, shape.padded_queries), tl.arange(0, shape.padded_dim)
    mask = (m < shape.group)[:, None] & (d < shape.head_dim)[None, :]
    return head * shape.group + m, mask


@jit
def _key_head(head, shape: tl.constexpr):
    """The head of a key [1], and its mask [1, D]."""
    mask = (tl.arange(0, shape.padded_dim) < shape.head_dim)[None, :]
    return tl.arange(0, 1) + shape.group * shape.kv_heads + head, mask


@jit
def _load_turn(product, position, heads, mask, shape: tl.constexpr):
    """Load what heads [M] at a position are rotated with."""
    d = tl.arange(0, shape.padded_dim)[None, :]
    half: tl.constexpr = shape.head_dim // 2
    angles = product.table + position * shape.head_dim + d % half
    cos = tl.load(angles, mask=d < shape.head_dim, other=0.0)
    sin = tl.load(angles + half, mask=d < shape.head_dim, other=0.0)
    weight, partner_weight = cos, sin  # of nobody's
    if product.norm is not None:
        weights = product.norm + heads[:, None] * shape.head_dim
        weight = tl.load(weights + d, mask=mask, other=0.0).to(tl.float32)
        partner = _partner(d, shape)
        partner_weight = tl.load(weights + partner, mask=mask, other=0.0).to(tl.float32)
    return _Turn(cos, tl.where(d < half, -sin, sin), weight, partner_weight)


@jit
def _partner(d, shape: tl.constexpr):
    """The lanes that are paired with lanes d; written so that they are loaded side by side."""
    return (d + shape.head_dim // 2) % shape.head_dim


@jit
def load_queries(product, row, head, shape: tl.constexpr):
    """Load the queries of a row and key head as the product has them."""
    heads, mask = _query_heads(head, shape)
    return _load_heads(product, row, heads, mask, shape)


@jit
def load_key(product, row, head, share, shape: tl.constexpr):
    """Load the key of a row as the product has it, for the first share; zeros for the others."""
    heads, mask = _key_head(head, shape)
    mask &= tl.full((1, 1), share, tl.int32) == 0
    return _load_heads(product, row, heads, mask, shape)


@jit
def load_value(product, row, head, share, shape: tl.constexpr):
    """Load the value of a row [1, D], likewise."""
    heads, mask = _key_head(head, shape)
    mask &= tl.full((1, 1), share, tl.int32) == 0
    first = _first(product, row, heads + shape.kv_heads, shape)
    d = tl.arange(0, shape.padded_dim)[None, :]
    return tl.load(product.qkv + first + d, mask=mask, other=0.0)


@jit
def _load_heads(product, row, heads, mask, shape: tl.constexpr):
    """Load heads [M] of a row."""
    d = tl.arange(0, shape.padded_dim)[None, :]
    first = _first(product, row, heads, shape)
    lanes = tl.load(product.qkv + first + d, mask=mask, other=0.0)
    return _Heads(lanes, tl.load(product.qkv + first + _partner(d, shape), mask=mask, other=0.0))


@jit
def _first(product, row, heads, shape: tl.constexpr):
    """Where heads [M] of a row begin in the product."""
    width = (shape.group + 2) * shape.kv_heads + product.num_between
    between = tl.where(heads >= shape.group * shape.kv_heads, product.num_between, 0)
    return (row * width + heads + between)[:, None] * shape.head_dim


@jit
def rotated(product, rotation, heads, shape: tl.constexpr):
    """Normalize and rotate heads: [M, D]."""
    x, y = heads.lanes.to(tl.float32), heads.partners.to(tl.float32)
    if product.norm is not None:
        scale = tl.rsqrt(tl.sum(x * x, 1) / shape.head_dim + product.eps)[:, None]
        x = by_weight(x * scale, rotation.weight, product.norm, heads.lanes).to(tl.float32)
        y = by_weight(y * scale, rotation.partner_weight, product.norm, heads.lanes)
        y = y.to(tl.float32)
    return (x * rotation.cos + y * rotation.sin).to(heads.lanes.dtype)


@jit
def see_newest(key, value, slot, paged, tile, head, rules, shape: tl.constexpr):
    """Store a row's newest key and value, and begin the softmax with them as they are stored.

    Returns:
        Maxima, sums of weights and weighted values, as of `softmax.attend`.
    """
    if paged.scales is not None:
        key = stored_fp8(key, tl.load(paged.scales + head))
        value = stored_fp8(value, tl.load(paged.scales + shape.kv_heads + head))

    d = tl.arange(0, shape.padded_dim)[None, :]
    block_id, offset = slot // shape.page, slot % shape.page
    cell = ((2 * block_id * shape.page + offset) * shape.kv_heads + head) * shape.head_dim
    to_values: tl.constexpr = shape.page * shape.kv_heads * shape.head_dim
    tl.store(paged.pages + cell + d, key, mask=d < shape.head_dim)
    tl.store(paged.pages + cell + to_values + d, value, mask=d < shape.head_dim)

    scores = tl.sum(tile.queries.to(tl.float32) * key.to(tl.float32), 1) * rules.scale
    if paged.scales is not None:
        scores *= tile.factors
    top = capped(scores, rules.softcap) * LOG2E
    total = tl.full((shape.padded_queries,), 1.0, tl.float32)
    acc = tl.full((shape.padded_queries, shape.padded_dim), 0.0, tl.float32) + value.to(tl.float32)
    return top, total, acc
