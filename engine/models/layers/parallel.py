"""Attention and MLP side by side: both read one normed input, and both are added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from engine.contracts.attention import AttentionSpec
from engine.kernels.linear import Linear
from engine.models.formats.part import Normed
from engine.models.formats.reader import WeightReader
from engine.models.layers.activation import LoadedActivation
from engine.models.layers.attention import AttendProduct, Attention
from engine.models.layers.layer import LayerInputs, LayerPlaces, Stream, Sublayer, SublayerSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import Map, NormSpec
from engine.models.weights.shares import Division, undivided
from engine.parallel.collectives import rank_sum


@dataclass(frozen=True)
class Parallel(SublayerSpec):
    """attention(norm(x)) + mlp(norm(x)); the norms of the two themselves are not used."""

    norm: NormSpec
    attention: Attention
    mlp: Mlp

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        return self.attention.attention_specs

    @property
    def divisions(self) -> Iterable[Division]:
        return [*self.attention.divisions, *self.mlp.divisions]

    def load(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> Sublayer:
        ranks, hidden, attention = reader.ranks, self.mlp.hidden_size, self.attention
        norm = self.norm.load(reader, hidden, f"{prefix}.")
        qkv = attention.inputs(prefix, ranks)
        product = reader.product([*qkv, *self.mlp.inputs(prefix, ranks)], undivided(hidden))
        return LoadedParallel(
            norm.before(product),
            sum(projection.num_channels for projection in qkv),
            attention.read_heads(reader, prefix, places),
            reader.product([attention.back(prefix)], attention.value_lanes(ranks)).linear,
            self.mlp.activation.load(reader, f"{prefix}.{self.mlp.name}."),
            self.mlp.read_down(reader, prefix).linear,
            None if ranks.is_lone else partial(rank_sum, exchange=ranks.exchange),
        )


class LoadedParallel(NamedTuple):
    """The `Sublayer` of a `Parallel`.

    Attributes:
        product: makes queries, keys and values, its first `qkv_width` columns, and after them what
            the activation takes.
        of_ranks: adds up what ranks have of both outputs, which is one sum; None is one rank.
    """

    product: Normed
    qkv_width: int
    heads: AttendProduct
    o: Linear
    activation: LoadedActivation
    down: Linear
    of_ranks: Map | None

    def __call__(self, stream: Stream, inputs: LayerInputs) -> Stream:
        product, residual = self.product(*stream)
        x = self.o(self.heads(product[:, : self.qkv_width].contiguous(), inputs))
        x += self.down(self.activation(product[:, self.qkv_width :]))
        return (x if self.of_ranks is None else self.of_ranks(x)), residual
