"""Groups of rows that begin with the same blocks, and when to read these once. No torch."""

from __future__ import annotations

from typing import NamedTuple

from engine.arrays import Int32Array, Int64Array

QUERY_TILE = 128
"""Number of query tokens of one row that attention multiplies with a tile of keys at once
(FlashInfer's FA3); a shorter row leaves the rest of the tile idle."""
MIN_SAVED = 1024
"""Least product of query tiles saved and keys shared for which sharing pays. A tile takes some
20 ns for each key and head on one of an H200's 132 multiprocessors, so at 16 heads this costs
about as much as the one more kernel that each layer then launches."""


class Sharing(NamedTuple):
    """The last rows of a step, in groups of rows that begin with the same blocks.

    Attributes:
        starts: int64 [G + 1]; group g is the rows starts[g]:starts[g + 1]. Those before the first
            group share nothing, and none follow the last.
        num_blocks: int32 [G]; leading blocks that the tables of a group's rows have in common, and
            every one of its tokens sees whole.
    """

    starts: Int64Array
    num_blocks: Int32Array

    def after(self, count: int) -> Sharing:
        """The same groups without the first `count` rows of the step, which share nothing."""
        return Sharing(self.starts - count, self.num_blocks)


def pays_to_share(counts: Int64Array, num_keys: int) -> bool:
    """Whether rows of `counts` tokens should see the `num_keys` keys they share as one row.

    Apart, each row leaves part of its last tile of queries empty; together they leave part of one
    tile empty. A single row, and rows of whole tiles, save nothing.
    """
    num_apart, num_together = (-(-counts // QUERY_TILE)).sum(), -(-counts.sum() // QUERY_TILE)
    return bool((num_apart - num_together) * num_keys >= MIN_SAVED)
