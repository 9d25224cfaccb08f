"""Rows of a step that begin with the same blocks, and when it pays to read these once. No torch."""

from __future__ import annotations

from typing import NamedTuple

from engine.request import Int32Array, Int64Array

QUERY_TILE = 128
"""Query tokens of one row that attention multiplies with a tile of keys at once (FlashInfer's FA3);
a shorter row leaves the rest of them idle."""
MIN_SAVED = 1024
"""Keys that query tiles must be spared. A tile takes some 20 ns a key and head on one of an H200's
132 multiprocessors, so at 16 heads this is about what the one more kernel of a layer costs."""


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
        """The same groups where the first `count` rows, which share nothing, are left out."""
        return Sharing(self.starts - count, self.num_blocks)


def pays_to_share(counts: Int64Array, num_keys: int) -> bool:
    """Whether rows of `counts` tokens should see the `num_keys` keys they share as one row.

    Each row for itself fills its last tile of queries in part, as one row they fill all but one.
    A row alone, and rows of whole tiles, spare nothing.
    """
    num_apart, num_together = (-(-counts // QUERY_TILE)).sum(), -(-counts.sum() // QUERY_TILE)
    return bool((num_apart - num_together) * num_keys >= MIN_SAVED)
