"""Norms and factors of queries and keys, before they are rotated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch

from engine.contracts.heads import Heads
from engine.kernels.invariant.functions import elementwise
from engine.kernels.norm import rms_norm, row_squares
from engine.models.formats.reader import WeightReader
from engine.models.layers.norms import Map
from engine.models.weights.shares import RankShare, undivided
from engine.parallel.collectives import rank_sum
from sampling.device.ranks import RankExchange

ByPosition = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps a QKV product [T, width] and positions int64 [T] to the product."""


class _Attention(Protocol):
    """The sizes of an `Attention`, and the order of a head's lanes."""

    @property
    def num_q_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def lane_order(self) -> torch.Tensor | None: ...


class LoadedNorms(NamedTuple):
    """Norms with their weights.

    Attributes:
        heads: the rank's, with the norms that the kernel of attention computes.
        prepare: norms a QKV product; None where the kernel does.
    """

    heads: Heads
    prepare: Map | None


@dataclass(frozen=True)
class QueryKeyNorm(ABC):
    """The description of norms.

    Attributes:
        q, k: names of the norms in the attention's module.
    """

    eps: float
    q: str = "q_norm"
    k: str = "k_norm"

    @abstractmethod
    def load(self, reader: WeightReader, prefix: str, attention: _Attention) -> LoadedNorms:
        """Read the weights, whose names begin with `prefix`."""

    def _heads(self, reader: WeightReader, attention: _Attention) -> Heads:
        num_q = reader.ranks.heads(attention.num_q_heads).length
        num_kv = reader.ranks.keys(attention.num_kv_heads).length
        return Heads(num_q, num_kv, None, self.eps)

    def _read(self, reader: WeightReader, prefix: str, *shares: RankShare) -> list[torch.Tensor]:
        """Both weights."""
        names = (f"{prefix}.{name}.weight" for name in (self.q, self.k))
        return [reader.tensor(name, share) for name, share in zip(names, shares, strict=True)]


@dataclass(frozen=True)
class HeadNorm(QueryKeyNorm):
    """An RMSNorm of each head, by a weight [head_dim] that heads share.

    Attributes:
        plus_one: it is by 1 + weight, in float32 and rounded once, as Gemma's.
    """

    plus_one: bool = False

    def load(self, reader: WeightReader, prefix: str, attention: _Attention) -> LoadedNorms:
        heads, share = self._heads(reader, attention), undivided(attention.head_dim)
        q, k = self._read(reader, prefix, share, share)

        def by_head() -> torch.Tensor:
            own_q, own_k = _in_order(q, attention), _in_order(k, attention)
            whole = torch.cat([own_q.repeat(heads.num_q, 1), own_k.repeat(heads.num_kv, 1)])
            return 1.0 + whole.float() if self.plus_one else whole

        return LoadedNorms(heads._replace(norm=reader.derived(by_head, q, k)), None)


@dataclass(frozen=True)
class WholeNorm(QueryKeyNorm):
    """An RMSNorm over all heads together, of queries and of keys."""

    def load(self, reader: WeightReader, prefix: str, attention: _Attention) -> LoadedNorms:
        ranks, head_dim = reader.ranks, attention.head_dim
        shares = (
            ranks.heads(attention.num_q_heads).times(head_dim),
            ranks.keys(attention.num_kv_heads).times(head_dim),
        )
        q, k = (
            reader.derived(partial(_in_order, weight, attention), weight)
            for weight in self._read(reader, prefix, *shares)
        )
        prepare = partial(norm_whole, q, k, self.eps, ranks.exchange)
        return LoadedNorms(self._heads(reader, attention), prepare)


def _in_order(weight: torch.Tensor, attention: _Attention) -> torch.Tensor:
    """A norm's weight, each head's lanes in the order of our kernels."""
    order = attention.lane_order
    if order is None:
        return weight
    return weight.view(-1, attention.head_dim)[:, order.to(weight.device)].flatten()


def norm_whole(
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    eps: float,
    exchange: RankExchange,
    qkv: torch.Tensor,
) -> torch.Tensor:
    """Norm queries and keys over all heads, those of other ranks included.

    Args:
        q_norm, k_norm: weights [q_width] and [k_width].
        qkv: [T, q_width + 2 * k_width].
    """
    q_width, k_width = len(q_norm), len(k_norm)
    q, k, v = torch.split(qkv, [q_width, k_width, k_width], dim=1)
    if exchange.size == 1:
        q, k = rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)
    else:
        q, k = _norm_over_ranks((q_norm, k_norm), eps, exchange, q, k)
    return torch.cat([q, k, v], dim=1)


def _norm_over_ranks(
    norms: tuple[torch.Tensor, torch.Tensor],
    eps: float,
    exchange: RankExchange,
    q: torch.Tensor,
    k: torch.Tensor,
) -> list[torch.Tensor]:
    """Norm q [T, q_width] and k [T, k_width] over the heads of all ranks, each of which has some.

    Key heads that several ranks hold are as often in the sum as in the width it is divided by.
    """
    squares = torch.stack([row_squares(x) for x in (q, k)])
    sums = rank_sum(squares, exchange)[..., None]
    factors = [
        torch.rsqrt(own / (exchange.size * x.shape[1]) + eps)
        for x, own in zip((q, k), sums, strict=True)
    ]
    return [
        (x.float() * factor).to(x.dtype) * weight
        for x, factor, weight in zip((q, k), factors, norms, strict=True)
    ]


class QueryGrowth(NamedTuple):
    """Queries that grow with the logarithm of their position, as those of Llama 4.

    A query at position i is multiplied by 1 + beta * log(1 + floor(i / original)).
    """

    beta: float
    original: int

    def of(self, q_width: int) -> ByPosition:
        """What is done with a product whose first columns are queries."""
        return partial(grow, self, q_width)


def grow(growth: QueryGrowth, q_width: int, qkv: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Multiply the queries of a product [T, q_width + others] at positions [T], in place."""
    steps = torch.div(at, growth.original, rounding_mode="floor").float()
    factors = (1.0 + growth.beta * elementwise(torch.log1p, steps)).to(qkv.dtype)
    qkv[:, :q_width] *= factors[:, None]
    return qkv


def clip(prepare: Map | None, bound: float, qkv: torch.Tensor) -> torch.Tensor:
    """Clip a QKV product to `bound`, in place, once `prepare` has run."""
    if prepare is not None:
        qkv = prepare(qkv)
    return qkv.clamp_(-bound, bound)
