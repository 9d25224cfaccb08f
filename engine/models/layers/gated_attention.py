"""Attention whose outputs are gated lane by lane, before they are projected back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine.kernels.activation import gate_by_sigmoid
from engine.kernels.linear import Linear
from engine.models.formats.part import Normed
from engine.models.formats.projections import Projection
from engine.models.formats.reader import WeightReader
from engine.models.layers.attention import AttendProduct, Attention
from engine.models.layers.layer import LayerInputs, LayerPlaces, Stream, Sublayer
from engine.models.layers.norms import Map
from engine.models.weights.shares import RankShares, undivided


@dataclass(frozen=True, kw_only=True, eq=False)
class GatedAttention(Attention):
    """o(sigmoid(gate) * attention(q, k, v)); the query product makes q and gate by head."""

    has_gates = True

    def load(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> Sublayer:
        qkv = reader.product(self.inputs(prefix, reader.ranks), undivided(self.hidden_size))
        return LoadedGatedAttention(
            self.norm.load(reader, self.hidden_size, f"{prefix}.").before(qkv),
            self._queries(reader.ranks).length,
            self.read_heads(reader, prefix, places),
            reader.linear([self.back(prefix)], self.value_lanes(reader.ranks)),
            self.output.load(reader, self.hidden_size, f"{prefix}."),
        )

    def inputs(self, prefix: str, ranks: RankShares) -> Sequence[Projection]:
        q, k, v = super().inputs(prefix, ranks)
        heads = ranks.heads(self.num_q_heads)
        lanes = torch.arange(self.head_dim) if self.lane_order is None else self.lane_order
        first = torch.arange(heads.length)[:, None] * 2 * self.head_dim
        gates = first + self.head_dim + torch.arange(self.head_dim)
        order = torch.cat([(first + lanes).flatten(), gates.flatten()])
        outputs = (heads.times(2 * self.head_dim),)
        return [q._replace(outputs=outputs, order=order), k, v]


class LoadedGatedAttention(NamedTuple):
    """The `Sublayer` of gated attention.

    Attributes:
        product: makes queries, gates, keys and values, one after another; the first two are
            `q_width` wide.
    """

    product: Normed
    q_width: int
    heads: AttendProduct
    o: Linear
    output: Map | None

    def __call__(self, stream: Stream, inputs: LayerInputs) -> Stream:
        columns, residual = self.product(*stream)
        gate = columns[:, self.q_width : 2 * self.q_width]
        x = self.o(gate_by_sigmoid(self.heads(columns, inputs), gate))
        return (x if self.output is None else self.output(x)), residual
