# mypy: allow-untyped-defs, allow-incomplete-defs
"""The newest token of a row in the decode kernel: taken from the QKV product it was made by.

The kernel then normalizes and rotates what it reads, as `rope.rope_and_store` does, and the newest
key and value go from the product into the softmax and to their cells at once: a launch less a
layer, and no queries or keys on their way through memory.

Letters in comments as in `decode_attention`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.kernels.pages import LOG2E, capped
from sampling.triton_support import jit, tl


class Product(NamedTuple):
    """A QKV product and what is done with it; one kernel argument.

    Attributes:
        qkv: [R, (num_q + 2 * num_kv) * D]. norm, eps: as in `Heads`. table: as in `Rotation`.
    """

    qkv: torch.Tensor
    norm: torch.Tensor | None
    table: torch.Tensor
    eps: float


@jit
def turned(product, position, row, heads, mask, shape: tl.constexpr):
    """Load heads [M] of a row's product, normalize and rotate them: [M, D]."""
    d = tl.arange(0, shape.padded_dim)
    half: tl.constexpr = shape.head_dim // 2
    partner = tl.where(d < half, d + half, d - half)
    first = (row * (shape.group + 2) * shape.kv_heads + heads)[:, None] * shape.head_dim
    x = tl.load(product.qkv + first + d[None, :], mask=mask, other=0.0)
    dtype = x.dtype
    x = x.to(tl.float32)
    y = tl.load(product.qkv + first + partner[None, :], mask=mask, other=0.0).to(tl.float32)
    if product.norm is not None:
        scale = tl.rsqrt(tl.sum(x * x, 1) / shape.head_dim + product.eps)[:, None]
        weights = product.norm + heads[:, None] * shape.head_dim
        x_weight = tl.load(weights + d[None, :], mask=mask, other=0.0).to(tl.float32)
        y_weight = tl.load(weights + partner[None, :], mask=mask, other=0.0).to(tl.float32)
        x = ((x * scale).to(dtype).to(tl.float32) * x_weight).to(dtype).to(tl.float32)
        y = ((y * scale).to(dtype).to(tl.float32) * y_weight).to(dtype).to(tl.float32)
    angles = product.table + position * shape.head_dim
    angles += tl.where(d < half, d, d - half)
    cos = tl.load(angles, mask=d < shape.head_dim, other=0.0)
    sin = tl.load(angles + half, mask=d < shape.head_dim, other=0.0)
    sin = tl.where(d < half, -sin, sin)
    return (x * cos[None, :] + y * sin[None, :]).to(dtype)


@jit
def see_newest(product, position, slot, pages, tile, row, head, rules, shape: tl.constexpr):
    """Store the row's newest key and value, and begin the softmax with them.

    Returns:
        Maxima, sums of weights and weighted values, as of `_attend`.
    """
    d = tl.arange(0, shape.padded_dim)
    mask = (d < shape.head_dim)[None, :]
    heads = tl.arange(0, 1) + shape.group * shape.kv_heads + head
    key = turned(product, position, row, heads, mask, shape)
    first = (row * (shape.group + 2) + shape.group + 1) * shape.kv_heads + head
    value = tl.load(product.qkv + first * shape.head_dim + d[None, :], mask=mask, other=0.0)

    block_id, offset = slot // shape.page, slot % shape.page
    cell = ((2 * block_id * shape.page + offset) * shape.kv_heads + head) * shape.head_dim
    to_values: tl.constexpr = shape.page * shape.kv_heads * shape.head_dim
    tl.store(pages + cell + d[None, :], key, mask=mask)
    tl.store(pages + cell + to_values + d[None, :], value, mask=mask)

    scores = tl.sum(tile.queries.to(tl.float32) * key.to(tl.float32), 1) * rules.scale
    top = capped(scores, rules.softcap) * LOG2E
    total = tl.full((shape.padded_queries,), 1.0, tl.float32)
    acc = tl.full((shape.padded_queries, shape.padded_dim), 0.0, tl.float32) + value.to(tl.float32)
    return top, total, acc
