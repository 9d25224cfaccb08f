"""The mixer of Kimi's delta rule (KDA, arXiv 2510.26692): each channel of a key has its decay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine.kernels.linear import Linear
from engine.kernels.recurrent.convolution import Convolution
from engine.kernels.recurrent.gated_norm import GatedNorm
from engine.kernels.recurrent.matrices import HeadWeights, Rule, TokenInputs
from engine.memory.states import StateSpec
from engine.models.formats.part import Normed
from engine.models.formats.projections import Projection
from engine.models.formats.reader import WeightReader
from engine.models.layers.layer import LayerInputs, LayerPlaces, Stream, Sublayer, SublayerSpec
from engine.models.layers.norms import NormSpec
from engine.models.layers.recurrent.row_states import (
    RowMemory,
    matrix_spec,
    read_convolution,
    ring_tensor,
)
from engine.models.weights.shares import HEADS, Division, RankShare, undivided


@dataclass(frozen=True, kw_only=True)
class ChannelDelta(SublayerSpec):
    """o_proj(o_norm(delta(conv(q, k, v)), g)), with decays of f and step sizes of b.

    Decays and the gate g are made by two products each, the first `head_dim` wide.

    Attributes:
        heads, head_dim: of queries, keys and values.
        eps: of the gated norm.
    """

    hidden_size: int
    heads: int
    head_dim: int
    conv_width: int
    eps: float
    norm: NormSpec
    name: str = "self_attn"

    @property
    def divisions(self) -> Iterable[Division]:
        return [Division(HEADS, self.heads)]

    def load(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> Sublayer:
        name, heads = f"{prefix}.{self.name}", reader.ranks.heads(self.heads)
        lanes, narrow = heads.times(self.head_dim), undivided(self.head_dim)
        first = [(part, lanes) for part in "qkv"] + [("f_a", narrow), ("g_a", narrow), ("b", heads)]
        product = reader.product(
            [Projection(f"{name}.{part}_proj", (share,)) for part, share in first],
            undivided(self.hidden_size),
        )
        decays, gate = (
            reader.product([Projection(f"{name}.{part}_b_proj", (lanes,))], narrow).linear
            for part in "fg"
        )
        convolved = [f"{name}.{part}_conv1d" for part in "qkv"]
        norm = reader.tensor(f"{name}.o_norm.weight", narrow)
        sizes = ChannelSizes(heads.length, self.head_dim)
        return LoadedChannelDelta(
            self.norm.load(reader, self.hidden_size, f"{prefix}.").before(product),
            places.state(lambda num_drafts: sizes.state(self.conv_width, num_drafts, reader.dtype)),
            sizes,
            read_convolution(reader, convolved, [lanes] * 3, self.conv_width),
            Rule(True, self.head_dim**-0.5, by_token=reader.modules.invariant),
            decays,
            HeadWeights(
                self._read_rates(reader, name, heads),
                reader.tensor(f"{name}.dt_bias", lanes, dtype=torch.float32).view(
                    -1, self.head_dim
                ),
            ),
            gate,
            GatedNorm(norm, self.eps, sigmoid=True),
            reader.linear([Projection(f"{name}.o_proj", (undivided(self.hidden_size),))], lanes),
        )

    def _read_rates(self, reader: WeightReader, name: str, heads: RankShare) -> torch.Tensor:
        """Read the logarithms of the heads' rates, which checkpoints have as [1, 1, heads, 1]."""
        shape = (1, self.heads, 1)
        rates = reader.channels(f"{name}.A_log", (undivided(1),), *shape, dtype=torch.float32)
        own = slice(heads.first, heads.first + heads.length)
        return reader.derived(lambda: rates.flatten()[own].clone(), rates)


class ChannelSizes(NamedTuple):
    """A rank's heads, and the lanes of each."""

    heads: int
    lanes: int

    @property
    def widths(self) -> list[int]:
        """The columns of what is convolved, of the two narrow products, and of step sizes."""
        return [3 * self.heads * self.lanes, self.lanes, self.lanes, self.heads]

    def state(self, width: int, num_drafts: int, dtype: torch.dtype) -> StateSpec:
        """What is kept of a row."""
        ring = ring_tensor(width, self.widths[0], num_drafts, dtype)
        shape = (self.lanes, self.lanes)
        return matrix_spec(ring, self.heads, self.heads, shape, num_drafts, by_channel=True)

    def split(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values by head, of what was convolved [T, columns]."""
        shape = (len(mixed), self.heads, self.lanes)
        q, k, v = mixed.chunk(3, dim=1)
        return q.view(shape), k.view(shape), v.view(shape)


class LoadedChannelDelta(NamedTuple):
    """The `Sublayer` of a `ChannelDelta`.

    Attributes:
        product: makes q, k, v, the narrow f and g, and b, one after another.
        place: of what it keeps, in `StepStates.layers`.
        decays, gate: products of the narrow f and g.
    """

    product: Normed
    place: int
    sizes: ChannelSizes
    convolution: Convolution
    rule: Rule
    decays: Linear
    weights: HeadWeights
    gate: Linear
    norm: GatedNorm
    o: Linear

    def __call__(self, stream: Stream, inputs: LayerInputs) -> Stream:
        columns, residual = self.product(*stream)
        sizes, memory = self.sizes, RowMemory.of(inputs, self.place)
        mixed, f, g, b = torch.split(columns, sizes.widths, dim=1)
        by_head = (len(columns), sizes.heads, sizes.lanes)
        a = self.decays(f.contiguous()).view(by_head)
        own = memory.convolve(mixed, self.convolution)
        tokens = TokenInputs(*sizes.split(own), a, b)
        read = memory.recur(tokens, self.rule, self.weights)
        gate = self.gate(g.contiguous()).view(by_head)
        return self.o(self.norm(read, gate)), residual
