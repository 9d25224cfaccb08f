"""The mixer of a gated delta rule: a matrix a head instead of keys and values a token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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
from engine.models.weights.shares import HEADS, Division, RankShare, RankShares, undivided


@dataclass(frozen=True, kw_only=True)
class GatedDelta(SublayerSpec):
    """o(norm(delta(conv(q, k, v)), z)), with decays and step sizes of a and b.

    Attributes:
        key_heads, value_heads: a key head serves value_heads / key_heads value heads.
        key_dim, value_dim: of a head.
        name: of the module. products: names of those that make q, k, v, z, b and a, and of how
            many of the six each.
        is_grouped: a product's outputs lie key head by key head, each with all of its parts.
        convolutions: names of those of q, k and v, or of the only one.
        norm_name, eps: of the gated norm.
        beta_scale: of `Rule`.
    """

    hidden_size: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    eps: float
    norm: NormSpec
    name: str = "linear_attn"
    products: tuple[tuple[str, int], ...] = (
        *(("in_proj_qkv", 3), ("in_proj_z", 1), ("in_proj_b", 1), ("in_proj_a", 1)),
    )
    is_grouped: bool = False
    convolutions: tuple[str, ...] = ("conv1d",)
    norm_name: str = "norm"
    o: str = "out_proj"
    beta_scale: float = 1.0
    rule: Rule = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", Rule(True, self.key_dim**-0.5, beta_scale=self.beta_scale))

    @property
    def divisions(self) -> Iterable[Division]:
        return [Division(HEADS, self.key_heads)]

    def load(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> Sublayer:
        name, shares = f"{prefix}.{self.name}", self._shares(reader.ranks)
        q, k, v, _, heads, _ = shares
        product = reader.product(self._projections(name, shares), undivided(self.hidden_size))
        sizes = DeltaSizes(q.length // self.key_dim, heads.length, self.key_dim, self.value_dim)
        return LoadedGatedDelta(
            self.norm.load(reader, self.hidden_size, f"{prefix}.").before(product),
            places.state(lambda num_drafts: sizes.state(self.conv_width, num_drafts, reader.dtype)),
            sizes,
            read_convolution(
                reader,
                [f"{name}.{each}" for each in self.convolutions],
                [q, k, v],
                self.conv_width,
            ),
            self.rule._replace(by_token=reader.modules.invariant),
            HeadWeights(
                reader.tensor(f"{name}.A_log", heads, dtype=torch.float32),
                reader.tensor(f"{name}.dt_bias", heads, dtype=torch.float32),
            ),
            GatedNorm(
                reader.tensor(f"{name}.{self.norm_name}.weight", undivided(self.value_dim)),
                self.eps,
            ),
            reader.linear([Projection(f"{name}.{self.o}", (undivided(self.hidden_size),))], v),
        )

    def _shares(self, ranks: RankShares) -> tuple[RankShare, ...]:
        """The rank's part of q, k, v, z, b and a."""
        keys = ranks.heads(self.key_heads)
        heads = keys.times(self.value_heads // self.key_heads)
        q, v = keys.times(self.key_dim), heads.times(self.value_dim)
        return q, q, v, v, heads, heads

    def _projections(self, name: str, shares: Sequence[RankShare]) -> Sequence[Projection]:
        left, projections = list(shares), []
        for product, count in self.products:
            own, left = left[:count], left[count:]
            order = None
            if self.is_grouped:
                order = _ungrouped(own, self.key_heads)
                whole = sum(share.whole for share in own) // self.key_heads
                own = [_groups(own[0], self.key_heads, shares[0]).times(whole)]
            projections.append(Projection(f"{name}.{product}", tuple(own), order=order))
        return projections


def _groups(share: RankShare, num_groups: int, q: RankShare) -> RankShare:
    """The rank's key heads."""
    size = q.whole // num_groups
    return RankShare(q.first // size, q.length // size, num_groups)


def _ungrouped(shares: Sequence[RankShare], num_groups: int) -> torch.Tensor:
    """The outputs of a grouped product in the order of its parts: all of the first, and so on."""
    widths = [share.whole // num_groups for share in shares]
    num_own = shares[0].length // widths[0]
    outputs = torch.arange(num_own * sum(widths)).view(num_own, -1)
    return torch.cat([part.flatten() for part in torch.split(outputs, widths, dim=1)])


class DeltaSizes(NamedTuple):
    """A rank's heads, and the lanes of each."""

    key_heads: int
    heads: int
    key: int
    value: int

    @property
    def convolved(self) -> int:
        """The columns of queries, keys and values."""
        return 2 * self.key_heads * self.key + self.heads * self.value

    def state(self, width: int, num_drafts: int, dtype: torch.dtype) -> StateSpec:
        """What is kept of a row."""
        ring = ring_tensor(width, self.convolved, num_drafts, dtype)
        return matrix_spec(ring, self.heads, self.key_heads, (self.value, self.key), num_drafts)

    def split(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values by head, of what was convolved [T, columns]."""
        keys = self.key_heads * self.key
        q, k, v = torch.split(mixed, [keys, keys, self.heads * self.value], dim=1)
        by_key = (len(mixed), self.key_heads, self.key)
        return q.view(by_key), k.view(by_key), v.view(len(mixed), self.heads, self.value)


class LoadedGatedDelta(NamedTuple):
    """The `Sublayer` of a gated delta rule; `product` makes q, k, v, z, b and a, one after another.

    Attributes:
        place: of what it keeps, in `StepStates.layers`.
    """

    product: Normed
    place: int
    sizes: DeltaSizes
    convolution: Convolution
    rule: Rule
    weights: HeadWeights
    norm: GatedNorm
    o: Linear

    def __call__(self, stream: Stream, inputs: LayerInputs) -> Stream:
        columns, residual = self.product(*stream)
        sizes, memory = self.sizes, RowMemory.of(inputs, self.place)
        widths = [sizes.convolved, sizes.heads * sizes.value, sizes.heads, sizes.heads]
        mixed, z, b, a = torch.split(columns, widths, dim=1)
        own = memory.convolve(mixed, self.convolution)
        tokens = TokenInputs(*sizes.split(own), a, b)
        read = memory.recur(tokens, self.rule, self.weights)
        return self.o(self.norm(read, z.view(len(z), sizes.heads, sizes.value))), residual
