"""Grouped-query attention, and the norms of its queries and keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import torch

from engine.contracts.attention import AttentionSpec
from engine.contracts.heads import Heads
from engine.kernels.linear import Linear
from engine.models.formats.part import Normed
from engine.models.formats.projections import Projection
from engine.models.formats.reader import WeightReader
from engine.models.layers.layer import LayerInputs, LayerPlaces, Stream, Sublayer, SublayerSpec
from engine.models.layers.norms import NO_NORM, Map, NormSpec
from engine.models.layers.query_key import ByPosition, QueryGrowth, QueryKeyNorm, clip
from engine.models.layers.residual import AS_IT_IS, AddedOutput
from engine.models.layers.rotation import RotationSpeeds
from engine.models.weights.shares import HEADS, KEYS, Division, RankShare, RankShares, undivided


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention(SublayerSpec):
    """Attention whose queries, keys and values one product makes.

    Attributes:
        hidden_size: of the stream. fan_in: of the input, where that is not the stream's.
        name: of the module that holds the products.
        qkv: names of the products of queries, keys and values, or of all three packed in one.
        lane_order: see `rotation.lane_order`.
        qk_norm: of queries and keys, before they are rotated.
        clip: bound of the QKV product's numbers, before they are rotated.
        growth: of queries with their positions.
        window, scale, softcap: as of `AttentionSpec`; None of scale is head_dim ** -0.5.
        has_sinks: each head has one more score in the softmax, without a value.
        is_causal: as of `AttentionSpec`.
    """

    has_gates = False
    """Between queries and keys its product makes a gate for each query head."""

    hidden_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    rotation: RotationSpeeds
    lane_order: torch.Tensor | None = None
    norm: NormSpec = NO_NORM
    fan_in: int | None = None
    name: str = "self_attn"
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    o: str = "o_proj"
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: QueryKeyNorm | None = None
    clip: float | None = None
    growth: QueryGrowth | None = None
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    has_sinks: bool = False
    is_causal: bool = True
    output: AddedOutput = AS_IT_IS

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        spec = AttentionSpec(
            num_q_heads=self.num_q_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5 if self.scale is None else self.scale,
            sliding_window=self.window,
            softcap=self.softcap,
            sinks=torch.zeros(self.num_q_heads) if self.has_sinks else None,
            is_causal=self.is_causal,
        )
        return [spec]

    @property
    def divisions(self) -> Iterable[Division]:
        return [Division(HEADS, self.num_q_heads), Division(KEYS, self.num_kv_heads)]

    def load(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> Sublayer:
        width = self.fan_in or self.hidden_size
        norm = self.norm.load(reader, width, f"{prefix}.")
        qkv = reader.product(self.inputs(prefix, reader.ranks), undivided(width))
        return LoadedAttention(
            norm.before(qkv),
            self.read_heads(reader, prefix, places),
            reader.linear([self.back(prefix)], self.value_lanes(reader.ranks)),
            self.output.load(reader, self.hidden_size, f"{prefix}."),
        )

    def inputs(self, prefix: str, ranks: RankShares) -> Sequence[Projection]:
        """The projections of the stream to queries, keys and values."""
        queries, keys = self._queries(ranks), self._keys(ranks)
        shares: list[tuple[RankShare, ...]]
        if len(self.qkv) == 1:
            shares = [(queries, keys, keys)]
            orders = [self._order(queries.length + keys.length, keys.length)]
        else:
            shares = [(queries,), (keys,), (keys,)]
            orders = [self._order(queries.length), self._order(keys.length), None]
        return [
            Projection(f"{prefix}.{self.name}.{name}", own, self.qkv_bias, order)
            for name, own, order in zip(self.qkv, shares, orders, strict=True)
        ]

    def back(self, prefix: str) -> Projection:
        """The projection of the heads' outputs back to the stream."""
        name = f"{prefix}.{self.name}.{self.o}"
        return Projection(name, (undivided(self.hidden_size),), self.o_bias)

    def value_lanes(self, ranks: RankShares) -> RankShare:
        """The rank's lanes of the heads' outputs."""
        return self._queries(ranks)

    def read_heads(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> AttendProduct:
        """Read what is between the two products, which keeps keys and values."""
        ranks, name = reader.ranks, f"{prefix}.{self.name}"
        q_heads, kv_heads = ranks.heads(self.num_q_heads), ranks.keys(self.num_kv_heads)
        (spec,) = self.attention_specs
        spec = replace(spec, num_q_heads=q_heads.length, num_kv_heads=kv_heads.length)
        if self.has_sinks:
            sinks = reader.tensor(f"{name}.sinks", q_heads, dtype=torch.float32)
            spec = replace(spec, sinks=sinks)
        heads, prepare = Heads(q_heads.length, kv_heads.length, None, 0.0), None
        if self.qk_norm is not None:
            heads, prepare = self.qk_norm.load(reader, name, self)
        if self.has_gates:
            heads = heads._replace(num_between=heads.num_q)
        if self.clip is not None:
            prepare = partial(clip, prepare, self.clip)
        by_position = None
        if self.growth is not None:
            by_position = self.growth.of(q_heads.length * self.head_dim)
        rotation = places.rotation(self.rotation)
        return LoadedHeads(places.attention(spec), rotation, heads, prepare, by_position)

    def _queries(self, ranks: RankShares) -> RankShare:
        return ranks.heads(self.num_q_heads).times(self.head_dim)

    def _keys(self, ranks: RankShares) -> RankShare:
        return ranks.keys(self.num_kv_heads).times(self.head_dim)

    def _order(self, num_rotated: int, num_others: int = 0) -> torch.Tensor | None:
        """Lanes of rotated heads in the order of our kernels, and others as they are."""
        order = self.lane_order
        if order is None:
            return None
        rotated = torch.arange(num_rotated).view(-1, self.head_dim)[:, order].flatten()
        return torch.cat([rotated, torch.arange(num_rotated, num_rotated + num_others)])


class AttendProduct(Protocol):
    """What is between the two products of attention, and keeps keys and values."""

    def __call__(self, qkv: torch.Tensor, inputs: LayerInputs) -> torch.Tensor:
        """Map a product [T, (num_q + 2 * num_kv) * head_dim] to outputs [T, num_q * head_dim]."""
        ...


class LoadedHeads(NamedTuple):
    """Attention of the heads in a QKV product.

    Attributes:
        layer, rotation: places of `LayerPlaces`.
        prepare: what is done with the product before it is rotated.
        by_position: what is done with it then and depends on positions.
    """

    layer: int
    rotation: int
    heads: Heads
    prepare: Map | None
    by_position: ByPosition | None = None

    def __call__(self, qkv: torch.Tensor, inputs: LayerInputs) -> torch.Tensor:
        """Map a product [T, (num_q + 2 * num_kv) * head_dim] to outputs [T, num_q * head_dim]."""
        if self.prepare is not None:
            qkv = self.prepare(qkv)
        rotation = inputs.rotations[self.rotation]
        if self.by_position is not None:
            qkv = self.by_position(qkv, rotation.positions)
        return inputs.attention.attend_product(self.layer, qkv, self.heads, rotation).flatten(1)


class LoadedAttention(NamedTuple):
    """The `Sublayer` of attention."""

    qkv: Normed
    heads: AttendProduct
    o: Linear
    output: Map | None

    def __call__(self, stream: Stream, inputs: LayerInputs) -> Stream:
        qkv, residual = self.qkv(*stream)
        x = self.o(self.heads(qkv, inputs))
        return (x if self.output is None else self.output(x)), residual
