"""Ranks of one engine and how they exchange tensors inside a step: the contract of exchanges."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor


class RankExchange(Protocol):
    """How the ranks of one engine exchange tensors.

    Attributes:
        rank: this one's number, from 0.
        size: how many there are.
    """

    rank: int
    size: int

    def all_gather(self, values: Tensor) -> Tensor:
        """Every rank's `values`, [size, *shape] in the order of ranks.

        All ranks call it alike: in the same order, with the same shapes and dtypes.
        """
        ...


class RaggedRows(NamedTuple):
    """Rows of every rank, of each as many words as that rank had to send."""

    words: Tensor  # int32 [size, n, width], defined as far as counts say
    counts: Tensor  # int32 [size, n], how many were to be sent; negative where nothing was


@runtime_checkable
class RaggedExchange(Protocol):
    """An exchange that sends no more of each row than it must."""

    def gather_rows(self, words: Tensor, counts: Tensor, width: int) -> RaggedRows:
        """Every rank's rows; arguments as for `VocabShard.gather_rows`."""
        ...


class LoneRank:
    """The `RankExchange` of a rank without others."""

    rank, size = 0, 1

    def all_gather(self, values: Tensor) -> Tensor:
        return values[None]
