"""The mixer of Mamba 2: a state space a head instead of keys and values a token."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from engine.errors import ModelError
from engine.kernels.invariant.functions import elementwise
from engine.kernels.linear import Linear
from engine.kernels.recurrent.convolution import Convolution
from engine.kernels.recurrent.gated_norm import GatedNorm
from engine.kernels.recurrent.matrices import HeadWeights, Rule, TokenInputs
from engine.memory.states import StateSpec
from engine.models.formats.part import Normed
from engine.models.formats.projections import Projection
from engine.models.formats.reader import WeightReader
from engine.models.layers.layer import LayerInputs, LayerPlaces, Stream, Sublayer, SublayerSpec
from engine.models.layers.norms import Map, NormSpec
from engine.models.layers.recurrent.row_states import (
    RowMemory,
    matrix_spec,
    read_convolution,
    ring_tensor,
)
from engine.models.layers.residual import AS_IT_IS, AddedOutput
from engine.models.weights.shares import (
    HEADS,
    RANKS_FLAG,
    Division,
    RankShare,
    RankShares,
    undivided,
)


@dataclass(frozen=True, kw_only=True)
class StateSpace(SublayerSpec):
    """out_proj(norm(space(conv(x, B, C), dt), gate)).

    Attributes:
        heads, head_dim: of x. groups: of B and C, each `state_size` wide.
        norm_groups: that the gated norm takes each alone; 0 is no norm: the gate multiplies.
        gate_first: the gate multiplies before the norm.
        dt_limits: of the step sizes.
        input_scales: factors of gate, x, B, C and dt as they come from the product.
    """

    hidden_size: int
    heads: int
    head_dim: int
    groups: int
    state_size: int
    conv_width: int
    eps: float
    norm: NormSpec
    name: str = "mixer"
    conv_bias: bool = True
    in_bias: bool = False
    out_bias: bool = False
    norm_groups: int = 1
    gate_first: bool = True
    dt_limits: tuple[float, float] = (0.0, math.inf)
    input_scales: tuple[float, ...] | None = None
    output: AddedOutput = AS_IT_IS

    @property
    def divisions(self) -> Iterable[Division]:
        return [Division(HEADS, self.heads)]

    def load(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> Sublayer:
        name, shares = f"{prefix}.{self.name}", self._shares(reader.ranks)
        inner, x, b, c, heads = shares
        projection = Projection(f"{name}.in_proj", shares, self.in_bias)
        product = reader.product([projection], undivided(self.hidden_size))
        sizes = SpaceSizes(
            heads.length, self.head_dim, b.length // self.state_size, self.state_size
        )
        back = Projection(f"{name}.out_proj", (undivided(self.hidden_size),), self.out_bias)
        return LoadedStateSpace(
            self.norm.load(reader, self.hidden_size, f"{prefix}.").before(product),
            places.state(lambda num_drafts: sizes.state(self.conv_width, num_drafts, reader.dtype)),
            sizes,
            Rule(False, 1.0, reader.modules.invariant, step_limits=self.dt_limits),
            self._scales(shares, reader),
            read_convolution(
                reader, [f"{name}.conv1d"], [x, b, c], self.conv_width, has_bias=self.conv_bias
            ),
            HeadWeights(
                *(
                    reader.tensor(f"{name}.{part}", heads, dtype=torch.float32)
                    for part in ("A_log", "dt_bias", "D")
                )
            ),
            self._gated_norm(reader, name, inner),
            reader.linear([back], inner),
            self.output.load(reader, self.hidden_size, f"{prefix}."),
        )

    def _shares(self, ranks: RankShares) -> tuple[RankShare, ...]:
        """The rank's part of gate, x, B, C and dt."""
        heads, groups = ranks.heads(self.heads), ranks.keys(self.groups)
        if not ranks.is_lone and self.norm_groups % ranks.exchange.size > 0:
            raise ModelError(
                f"{RANKS_FLAG} {ranks.exchange.size}: the norm of the state-space layers has "
                f"{self.norm_groups} groups, which do not divide by it"
            )
        inner, state = heads.times(self.head_dim), groups.times(self.state_size)
        return inner, inner, state, state, heads

    def _scales(self, shares: tuple[RankShare, ...], reader: WeightReader) -> torch.Tensor | None:
        if self.input_scales is None:
            return None
        factors = [
            torch.full((share.length,), factor, dtype=reader.dtype, device=reader.device)
            for share, factor in zip(shares, self.input_scales, strict=True)
        ]
        return torch.cat(factors)

    def _gated_norm(self, reader: WeightReader, name: str, inner: RankShare) -> GatedNorm | None:
        if not self.norm_groups:
            return None
        weight = reader.tensor(f"{name}.norm.weight", inner)
        width = inner.whole // self.norm_groups
        return GatedNorm(weight.view(-1, width), self.eps, self.gate_first)


class SpaceSizes(NamedTuple):
    """A rank's heads and groups, and the lanes of each."""

    heads: int
    head: int
    groups: int
    state_size: int

    @property
    def widths(self) -> list[int]:
        """The columns of gate, of what is convolved, and of dt."""
        inner, state = self.heads * self.head, self.groups * self.state_size
        return [inner, inner + 2 * state, self.heads]

    def state(self, width: int, num_drafts: int, dtype: torch.dtype) -> StateSpec:
        """What is kept of a row."""
        ring = ring_tensor(width, self.widths[1], num_drafts, dtype)
        shape = (self.head, self.state_size)
        return matrix_spec(ring, self.heads, self.groups, shape, num_drafts)

    def split(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """C, B and x, by group and head, of what was convolved [T, columns]."""
        state = self.groups * self.state_size
        x, b, c = torch.split(mixed, [self.heads * self.head, state, state], dim=1)
        by_group = (len(mixed), self.groups, self.state_size)
        return c.view(by_group), b.view(by_group), x.view(len(mixed), self.heads, self.head)


class LoadedStateSpace(NamedTuple):
    """The `Sublayer` of a state space; `product` makes gate, x, B, C and dt, one after another.

    Attributes:
        place: of what it keeps, in `StepStates.layers`.
        scales: of the product's columns.
    """

    product: Normed
    place: int
    sizes: SpaceSizes
    rule: Rule
    scales: torch.Tensor | None
    convolution: Convolution
    weights: HeadWeights
    norm: GatedNorm | None
    o: Linear
    output: Map | None

    def __call__(self, stream: Stream, inputs: LayerInputs) -> Stream:
        columns, residual = self.product(*stream)
        if self.scales is not None:
            columns = columns * self.scales
        sizes, memory = self.sizes, RowMemory.of(inputs, self.place)
        gate, mixed, dt = torch.split(columns, sizes.widths, dim=1)
        own = memory.convolve(mixed, self.convolution)
        tokens = TokenInputs(*sizes.split(own), dt, dt)
        read = memory.recur(tokens, self.rule, self.weights)
        read = read.flatten(1)
        if self.norm is None:
            read = read * elementwise(F.silu, gate)
        else:
            groups = (len(read), -1, self.norm.weight.shape[1])
            read = self.norm(read.view(groups), gate.view(groups))
        out = self.o(read)
        return (out if self.output is None else self.output(out)), residual
