"""A rank's share of a model: its heads, columns and tiles, and what cannot be divided.

Query heads are divided evenly, and key heads too; where there are fewer than ranks, neighboring
ranks hold the same one. The columns of an MLP, and of every expert, are divided evenly, or by whole
groups of those that share one scale of a quantized weight: then some ranks have a group more than
others. The vocabulary is divided by tiles (`sampling.vocab_shard`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine.errors import ModelError
from sampling.device.ranks import RankExchange
from sampling.noise import TILE
from sampling.vocab_shard import VocabShard

RANKS_FLAG = "--tensor-parallel-size"
"""The flag that sets the number of ranks, for errors."""


class RankShare(NamedTuple):
    """A rank's range of something that ranks divide: `length` of `whole`, from `first` on."""

    first: int
    length: int
    whole: int

    def times(self, size: int) -> RankShare:
        """The share in smaller units, `size` of which make up one."""
        return RankShare(self.first * size, self.length * size, self.whole * size)

    def per(self, size: int) -> RankShare:
        """The share in larger units of `size` each; a last one may be smaller."""
        end = -(-(self.first + self.length) // size)
        return RankShare(self.first // size, end - self.first // size, -(-self.whole // size))


def undivided(length: int) -> RankShare:
    """The share of what every rank has."""
    return RankShare(0, length, length)


class OwnedPart(NamedTuple):
    """The part of a tensor that one rank has.

    Attributes:
        dim: the dimension that is divided. whole: its length in the whole tensor.
        own: what of it is the rank's, in order.
    """

    dim: int
    whole: int
    own: tuple[slice, ...]

    @classmethod
    def of(cls, dim: int, shares: Sequence[RankShare]) -> OwnedPart | None:
        """The part of a dimension in which shares follow one another; None: all of it."""
        if all(share.length == share.whole for share in shares):
            return None
        own, start = [], 0
        for share in shares:
            first = start + share.first
            own.append(slice(first, first + share.length))
            start += share.whole
        return cls(dim, start, tuple(own))

    def slices(self) -> Iterator[tuple[slice, ...]]:
        """The slices of the tensor's dimensions, for each of `own`."""
        for each in self.own:
            yield (*[slice(None)] * self.dim, each)

    def indices(self) -> torch.Tensor:
        """The indices of `own`, int64."""
        return torch.cat([torch.arange(own.start, own.stop) for own in self.own])

    def split(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        """The pieces of the rank's part, one for each of `own`."""
        return torch.split(part, [own.stop - own.start for own in self.own], self.dim)

    def of_whole(self, whole: torch.Tensor) -> torch.Tensor:
        """The rank's part of the whole tensor."""
        return torch.cat([whole[own] for own in self.slices()], self.dim)

    def whole_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the whole tensor, whose part has a shape."""
        return (*shape[: self.dim], self.whole, *shape[self.dim + 1 :])


@dataclass(frozen=True)
class RankShares:
    """The ranks that compute each step together, and one rank's share of what they divide.

    Attributes:
        exchange: of the rank.
        group: neighboring columns that no two ranks may share, see `Quantization.input_group`.
    """

    exchange: RankExchange
    group: int = 1

    @property
    def is_lone(self) -> bool:
        """Whether there is one rank."""
        return self.exchange.size == 1

    def heads(self, whole: int) -> RankShare:
        """The rank's query heads."""
        heads = whole // self.exchange.size
        return RankShare(self.exchange.rank * heads, heads, whole)

    def keys(self, whole: int) -> RankShare:
        """The rank's key heads."""
        rank, size = self.exchange.rank, self.exchange.size
        keys = max(whole // size, 1)
        return RankShare(rank * min(whole, size) // size * keys, keys, whole)

    def columns(self, whole: int) -> RankShare:
        """The rank's columns of an MLP, or of an expert."""
        rank, size, group = self.exchange.rank, self.exchange.size, self.group
        num_groups = -(-whole // group)
        first, end = (min(num_groups * i // size * group, whole) for i in (rank, rank + 1))
        return RankShare(first, end - first, whole)

    def ids(self, whole: int) -> RankShare:
        """The rank's ids of a vocabulary."""
        shard = VocabShard.split(whole, self.exchange)
        return RankShare(shard.first, shard.width, whole)


HEADS, KEYS, COLUMNS = "attention heads", "key heads", "columns"


class Division(NamedTuple):
    """What a layer divides among ranks.

    Attributes:
        kind: `HEADS`, `KEYS` or `COLUMNS`. number: of them. name: of columns, for errors.
    """

    kind: str
    number: int
    name: str = ""


def check_shards(divisions: Iterable[Division], vocab_size: int, size: int, group: int) -> None:
    """Refuse a model that does not divide among `size` ranks.

    Args:
        group: as of `RankShares`.

    Raises:
        ModelError: with the numbers.
    """
    for kind, number, name in dict.fromkeys(divisions):
        if kind == HEADS and number % size:
            raise ModelError(
                f"{RANKS_FLAG} {size}: the model's {number} attention heads do not divide by it"
            )
        if kind == KEYS and number % size and size % number:
            raise ModelError(
                f"{RANKS_FLAG} {size}: the model's {number} key heads neither divide by it nor "
                "into it"
            )
        if kind == COLUMNS:
            _check_columns(name, number, size, group)
    num_tiles = -(-vocab_size // TILE)
    if num_tiles < size:
        raise ModelError(
            f"{RANKS_FLAG} {size}: the model's vocabulary of {vocab_size} has {num_tiles} tiles "
            f"of {TILE}, fewer than ranks"
        )


def _check_columns(name: str, columns: int, size: int, group: int) -> None:
    if columns % (size * group) == 0:
        return
    if group == 1:
        raise ModelError(f"{RANKS_FLAG} {size}: {name} {columns} does not divide by it")
    num_groups = -(-columns // group)
    if num_groups < size:
        raise ModelError(
            f"{RANKS_FLAG} {size}: {name} {columns} is {num_groups} groups of {group} inputs that "
            "one scale stands for, fewer than ranks; give the unquantized model as MODEL"
        )
