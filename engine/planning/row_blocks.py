"""The blocks of running rows: what each holds, lacks and is promised. No torch."""

from __future__ import annotations

import numpy as np

from engine.arrays import Int64Array
from engine.plan import BlockGrant
from engine.rows import RowTable


class RowBlocks:
    """Counts and notes the blocks of rows; `BlockPool` grants them.

    Attributes:
        block_size: tokens in a block.
        grants: what rows were given since `take_grants`, in order.
    """

    def __init__(self, table: RowTable, block_size: int, lookahead: int) -> None:
        """Make it.

        Args:
            lookahead: tokens that a drafter writes after those computed.
        """
        self._table = table
        self.block_size = block_size
        self._lookahead = lookahead
        self.grants: list[BlockGrant] = []

    def needed(self, num_computed: Int64Array | int, limit: Int64Array | int) -> Int64Array:
        """Blocks that rows with so many tokens computed need, the drafter's writes included.

        A row's last token is never computed, and writes from its position on go to the null block.
        """
        ends: Int64Array = np.minimum(num_computed + self._lookahead, limit - 1)
        return -(-ends // self.block_size)

    def missing(self, rows: Int64Array, counts: Int64Array) -> Int64Array:
        """Blocks that rows lack to compute so many tokens each."""
        table = self._table
        ends = table.num_computed[rows] + counts
        return self.needed(ends, table.limit[rows]) - table.num_granted[rows]

    def append(self, row: int, blocks: list[int]) -> None:
        """Append granted or shared blocks to a row's."""
        held = self._table.blocks[row]
        self.grants.append(BlockGrant(row, len(held), blocks))
        held.extend(blocks)
        self._table.num_granted[row] = len(held)

    def take_grants(self) -> list[BlockGrant]:
        """What rows were given since this was last called."""
        taken, self.grants = self.grants, []
        return taken

    def num_promised(self) -> int:
        """The number of blocks that running choices still need for tokens they already have."""
        table = self._table
        if not table.running:
            return 0
        rows = np.array(table.running, dtype=np.int64)
        need = self.needed(table.num_tokens[rows], table.limit[rows]) - table.num_granted[rows]
        return int(np.maximum(need, 0).sum())
