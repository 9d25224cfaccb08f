"""Attention whose keys and values are compressed (multi-head latent attention, arXiv 2405.04434).

A layer's first product makes of a token its queries, a vector of `kv_rank` numbers and `rope` more,
which are rotated and are the end of every head's key. A second product makes of the vector the
beginnings of all keys, and all values. Keys and values are stored so, whole and head by head, in
the cache that other models have: its kernels serve as they are, and what a step rounds does not
depend on the cache. A value has as much room as a key; what it leaves is filled with its own first
lanes, so that a scale of the cache covers no other numbers, and is cut off after attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from engine.contracts.attention import AttentionSpec
from engine.contracts.heads import Heads
from engine.kernels.linear import Linear
from engine.kernels.norm import rms_norm
from engine.models.formats.projections import Projection
from engine.models.formats.reader import WeightReader
from engine.models.layers.attention import LoadedAttention, LoadedHeads
from engine.models.layers.layer import LayerPlaces, Sublayer, SublayerSpec
from engine.models.layers.norms import NormSpec
from engine.models.layers.query_key import QueryGrowth
from engine.models.layers.rotation import RotationSpeeds, lane_order
from engine.models.weights.shares import HEADS, Division, undivided

NORM_EPS = 1e-6
"""Of the norms of compressed vectors, which take none from the config."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LatentAttention(SublayerSpec):
    """Attention over compressed keys and values.

    Attributes:
        q_rank: of compressed queries; None where queries are not compressed.
        kv_rank: of compressed keys and values.
        nope, rope: lanes of queries and keys that are not rotated, and after them those that are.
        value: lanes of values, no more than `head_dim`.
        interleaved: lanes are rotated in pairs of neighbors.
        growth: of queries with their positions.
    """

    hidden_size: int
    num_heads: int
    norm: NormSpec
    rotation: RotationSpeeds
    scale: float
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int
    interleaved: bool
    growth: QueryGrowth | None = None
    name: str = "self_attn"

    @property
    def head_dim(self) -> int:
        """Lanes of queries and keys."""
        return self.nope + self.rope

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        return [AttentionSpec(self.num_heads, self.num_heads, self.head_dim, self.scale)]

    @property
    def divisions(self) -> Iterable[Division]:
        return [Division(HEADS, self.num_heads)]

    def load(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> Sublayer:
        name, own = f"{prefix}.{self.name}", reader.ranks.heads(self.num_heads)
        norm = self.norm.load(reader, self.hidden_size, f"{prefix}.")
        queries = (own.times(self.head_dim),) if self.q_rank is None else (undivided(self.q_rank),)
        first = [
            Projection(f"{name}.{'q_proj' if self.q_rank is None else 'q_a_proj'}", queries),
            Projection(f"{name}.kv_a_proj_with_mqa", (undivided(self.kv_rank + self.rope),)),
        ]
        product = reader.product(first, undivided(self.hidden_size))
        (spec,) = self.attention_specs
        spec = replace(spec, num_q_heads=own.length, num_kv_heads=own.length)
        back = Projection(f"{name}.o_proj", (undivided(self.hidden_size),))
        o = ValueLanes(reader.linear([back], own.times(self.value)), self.head_dim, self.value)
        heads = LoadedHeads(
            places.attention(spec),
            places.rotation(self.rotation),
            Heads(own.length, own.length, None, NORM_EPS),
            self._read_latent_heads(reader, name).__call__,
            None if self.growth is None else self.growth.of(own.length * self.head_dim),
        )
        return LoadedAttention(norm.before(product), heads, o.__call__, None)

    def _read_latent_heads(self, reader: WeightReader, name: str) -> LatentHeads:
        """Read what follows the first product."""
        own, q_norm, q = reader.ranks.heads(self.num_heads), None, None
        if self.q_rank is not None:
            q_norm = reader.tensor(f"{name}.q_a_layernorm.weight", undivided(self.q_rank))
            queries = Projection(f"{name}.q_b_proj", (own.times(self.head_dim),))
            q = reader.product([queries], undivided(self.q_rank)).linear
        kv_norm = reader.tensor(f"{name}.kv_a_layernorm.weight", undivided(self.kv_rank))
        pairs = Projection(f"{name}.kv_b_proj", (own.times(self.nope + self.value),))
        kv = reader.product([pairs], undivided(self.kv_rank)).linear
        columns = head_columns(self, own.length).to(reader.device)
        return LatentHeads(q_norm, q, kv_norm, kv, self.rope, columns)


class LatentHeads(NamedTuple):
    """Maps a layer's first product to the queries, keys and values of all heads.

    Attributes:
        q_norm, q: norm [q_rank] and product of compressed queries; None where they are not.
        kv_norm, kv: norm [kv_rank] and product of compressed keys and values.
        rope: lanes that all key heads share.
        columns: int64 [3 * heads * head_dim], see `head_columns`.
    """

    q_norm: torch.Tensor | None
    q: Linear | None
    kv_norm: torch.Tensor
    kv: Linear
    rope: int
    columns: torch.Tensor

    def __call__(self, product: torch.Tensor) -> torch.Tensor:
        """Make [T, 3 * heads * head_dim] of [T, queries + kv_rank + rope]."""
        kv_rank = len(self.kv_norm)
        widths = [product.shape[1] - kv_rank - self.rope, kv_rank, self.rope]
        q, kv, rope = torch.split(product, widths, dim=1)
        if self.q is not None:
            assert self.q_norm is not None
            q = self.q(rms_norm(q, self.q_norm, NORM_EPS))
        kv = self.kv(rms_norm(kv, self.kv_norm, NORM_EPS))
        return torch.cat([q, rope, kv], dim=1).index_select(1, self.columns)


def head_columns(latent: LatentAttention, num_heads: int) -> torch.Tensor:
    """Where queries, keys and values are in [queries | rotated lanes | keys and values by head].

    Lanes of queries and keys are in the order that our kernels rotate, see `rotation`.

    Returns:
        int64 [3 * num_heads * head_dim].
    """
    nope, rope, value, head_dim = latent.nope, latent.rope, latent.value, latent.head_dim
    order = lane_order(head_dim, rope, interleaved=latent.interleaved)
    if order is None:
        order = torch.arange(head_dim)
    order = (order + nope) % head_dim  # the model's rotated lanes are the last ones
    heads, shared = torch.arange(num_heads)[:, None], num_heads * head_dim
    own = shared + rope + heads * (nope + value)
    keys = torch.where(order < nope, own + order, shared + order - nope)
    values = own + nope + torch.arange(head_dim) % value
    return torch.cat([heads * head_dim + order, keys, values]).flatten()


class ValueLanes(NamedTuple):
    """The output product of heads [T, heads * head_dim], by the first `value` lanes of each.

    Attributes:
        product: of [T, heads * value].
    """

    product: Linear
    head_dim: int
    value: int

    def __call__(self, heads: torch.Tensor) -> torch.Tensor:
        """Cut and multiply."""
        split = heads.view(len(heads), -1, self.head_dim)
        return self.product(split[..., : self.value].flatten(1))
