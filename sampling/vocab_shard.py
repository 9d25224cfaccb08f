"""A vocabulary divided among ranks by whole tiles, and what ranks exchange to draw from it.

Each rank holds the logits of a contiguous range of ids, ascending by rank, that begins and ends at
a tile of the noise contract (`sampling.noise`). Noise is a function of global ids, so a rank races
its own ids by the very keys they have on one GPU, and the least key of all ranks wins. What ranks
exchange are statistics of tiles, keys, counts and values of few ids, never rows of logits:

    a draw       the highest logit of each rank, then its least key with its id: 20 bytes a row;
                 of a draft likewise
    log masses   8 bytes a tile, added in tile order, so that sums have the same bits at any number
                 of ranks
    top lists    8 bytes an entry; values of ids come from their owners, ranks by a sum of counts
    filters      the highest values of each rank, and sums of integers, which no order can change

On CUDA ranks exchange the statistics of tiles first, and what `sampling.sharded.stages`
lists. `VocabShard.whole_rows` gathers logits for kernels where 16 does not divide the vocabulary,
and for nothing else.

Every rank ends with the same numbers, because all compute them from the same gathered tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sampling.device.ranks import LoneRank, RaggedExchange, RaggedRows, RankExchange
from sampling.noise import TILE


class ShardError(ValueError):
    """A vocabulary that cannot be divided among so many ranks."""


@dataclass(frozen=True)
class VocabShard:
    """The ids that one rank holds, and its exchange with the others.

    Attributes:
        starts: first id of each rank, then the size of the vocabulary; multiples of `TILE` but the
            last.
    """

    starts: tuple[int, ...]
    exchange: RankExchange

    @classmethod
    def whole(cls, vocab_size: int) -> VocabShard:
        """All ids, on the only rank."""
        return cls((0, vocab_size), LoneRank())

    @classmethod
    def split(cls, vocab_size: int, exchange: RankExchange) -> VocabShard:
        """Divide the tiles as evenly as they go.

        Raises:
            ShardError: there are fewer tiles than ranks.
        """
        num_tiles, size = -(-vocab_size // TILE), exchange.size
        if num_tiles < size:
            raise ShardError(
                f"a vocabulary of {vocab_size} ids has {num_tiles} tiles of {TILE}, fewer than "
                f"the {size} ranks"
            )
        firsts = (rank * num_tiles // size * TILE for rank in range(size))
        return cls((*firsts, vocab_size), exchange)

    @property
    def is_whole(self) -> bool:
        """Whether there is one rank alone."""
        return self.exchange.size == 1

    @property
    def first(self) -> int:
        """The first id of this rank."""
        return self.starts[self.exchange.rank]

    @property
    def widths(self) -> tuple[int, ...]:
        """How many ids each rank holds."""
        return tuple(end - first for first, end in pairwise(self.starts))

    @property
    def width(self) -> int:
        """How many ids this rank holds."""
        return self.widths[self.exchange.rank]

    @property
    def vocab_size(self) -> int:
        """Ids of all ranks."""
        return self.starts[-1]

    def token_ids(self) -> Tensor:
        """The ids of this rank, int64 [width]."""
        return torch.arange(self.first, self.first + self.width)

    @property
    def num_tiles(self) -> int:
        """Tiles of all ranks."""
        return -(-self.vocab_size // TILE)

    @property
    def most_tiles(self) -> int:
        """The tiles of the rank that holds the most."""
        return -(-max(self.widths) // TILE)

    @property
    def first_tile(self) -> int:
        """The number of this rank's first tile."""
        return self.first // TILE

    def columns(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The columns of this rank's logits that hold ids, and whether it holds them.

        Returns int64 in [0, width) whatever the id, and bool, both as `token_ids`.
        """
        columns = token_ids.long() - self.first
        held = (columns >= 0) & (columns < self.width)
        return columns.clamp_(0, self.width - 1), held

    def highest(self, values: Tensor) -> Tensor:
        """The largest of all ranks' values, elementwise; NaN if any is."""
        return self.exchange.all_gather(values).amax(0)

    def total(self, counts: Tensor) -> Tensor:
        """The sum over all ranks of integers, elementwise."""
        return self.exchange.all_gather(counts).sum(0, dtype=counts.dtype)

    def gather_rows(self, words: Tensor, counts: Tensor, width: int) -> RaggedRows:
        """Every rank's rows, as far as there is something to send of them.

        Args:
            words: int32 [n, at most `width`], any row stride.
            counts: int32 [n], how many words of each row are sent, no more than there are;
                negative, on all ranks or on none, where the row is left out.
            width: the same on every rank.
        """
        if isinstance(self.exchange, RaggedExchange):
            return self.exchange.gather_rows(words, counts, width)
        gather = self.exchange.all_gather
        return RaggedRows(gather(F.pad(words, (0, width - words.shape[1]))), gather(counts))

    def whole_rows(self, logits: Tensor) -> Tensor:
        """Rows of logits of the whole vocabulary, [n, vocab_size], from this rank's [n, width].

        It sends many times more than everything else here, for kernels that are not divided.
        """
        if self.is_whole:
            return logits
        widest = max(self.widths)
        own = logits[:, : self.width]
        parts = self.exchange.all_gather(F.pad(own, (0, widest - self.width)))
        return torch.cat([parts[rank][:, :width] for rank, width in enumerate(self.widths)], dim=1)

    def all_tiles(self, own: Tensor) -> Tensor:
        """A number of each tile of the vocabulary from those of this rank's tiles.

        Args:
            own: [..., own tiles].

        Returns:
            [..., tiles], contiguous.
        """
        counts = [-(-width // TILE) for width in self.widths]
        padded = F.pad(own, (0, max(counts) - own.shape[-1]))
        parts = self.exchange.all_gather(padded)
        return torch.cat([parts[rank][..., :count] for rank, count in enumerate(counts)], dim=-1)

    def of_owners(self, values: Tensor, token_ids: Tensor) -> Tensor:
        """A number of each id as the rank that holds it has it.

        Args:
            values: [n, m], this rank's; those of other ranks' ids are not read.
            token_ids: [n, m].
        """
        owners = torch.zeros_like(token_ids, dtype=torch.int64)
        for first in self.starts[1:-1]:
            owners += token_ids >= first
        return self.exchange.all_gather(values).gather(0, owners[None]).squeeze(0)

    def winner(self, keys: Tensor, token_ids: Tensor) -> Tensor:
        """The id with the least key of all ranks, the lowest among equals; int64 [n].

        Args:
            keys: float64 [n], this rank's least.
            token_ids: int64 [n], where it is.
        """
        ids = token_ids.to(torch.float64)  # exact below 2^53
        candidates = self.exchange.all_gather(torch.stack((keys, ids)))  # [size, 2, n]
        least = candidates[:, 0].argmin(0, keepdim=True)  # ranks ascend by id: the first of equals
        return candidates[:, 1].gather(0, least).squeeze(0).long()
