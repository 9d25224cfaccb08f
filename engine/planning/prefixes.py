"""Finds the computed blocks of a choice's prefix, and offers blocks of rows for reuse. No torch."""

from __future__ import annotations

import numpy as np

from engine.arrays import Int64Array
from engine.config import CacheConfig
from engine.memory.blocks import (
    BlockPool,
    block_hashes,
    chain_hash,
    root_hash,
    versioned_salt,
)
from engine.memory.snapshots import NO_SNAPSHOT
from engine.planning.row_snapshots import RowSnapshots
from engine.rows import Choice, RowTable


class PrefixIndex:
    """Knows the prefix hashes of choices and rows, by which blocks are found and registered.

    Args:
        snapshots: where layers keep states: found and registered by the hashes of blocks.

    Attributes:
        num_updates: how often the weights were written: keys of others are never found.
    """

    def __init__(
        self,
        config: CacheConfig,
        pool: BlockPool,
        table: RowTable,
        snapshots: RowSnapshots | None = None,
    ) -> None:
        self._block_size = config.block_size
        self._prefix_caching = config.prefix_caching
        self._pool = pool
        self._table = table
        self._snapshots = snapshots
        self.num_updates = 0

    def find(self, choice: Choice, num_reusable: int, *, drafted: bool) -> list[int]:
        """Known blocks of a choice's first `num_reusable` tokens, without holding them.

        Args:
            drafted: end before the first block that the drafter's cache lacks.
        """
        if not self._prefix_caching and choice.index == 0:
            return []
        num_full = max(num_reusable, 0) // self._block_size
        return self._pool.match(self._hashes(choice)[:num_full], drafted=drafted)

    def find_state(self, choice: Choice, num_blocks: int) -> tuple[int, int]:
        """The deepest snapshot within a choice's first blocks; see `SnapshotPool.find`."""
        if self._snapshots is None or not num_blocks:
            return num_blocks, NO_SNAPSHOT
        return self._snapshots.pool.find(self._hashes(choice)[:num_blocks])

    def last_hash(self, choice: Choice, num_blocks: int) -> bytes:
        """The hash of the last of a choice's first `num_blocks` blocks, or the root's for none."""
        if num_blocks:
            return self._hashes(choice)[num_blocks - 1]
        return root_hash(self._salt(choice), _digest(choice))

    def register(self, rows: Int64Array) -> None:
        """Offer full blocks of rows for reuse, after usable logits of these rows were read back."""
        table, size = self._table, self._block_size
        ready = np.minimum(table.num_settled[rows], table.num_known[rows])
        new = ready - table.num_hashed[rows] >= size
        if np.count_nonzero(new):
            for row, num_ready in zip(rows[new].tolist(), ready[new].tolist(), strict=True):
                self._register_row(row, num_ready // size)
        if self._snapshots is not None:
            self._snapshots.register()

    def _register_row(self, row: int, num_full: int) -> None:
        table, size = self._table, self._block_size
        known = self._hashes(table.choice(row))
        for block_idx in range(int(table.num_hashed[row]) // size, num_full):
            if block_idx < len(known):
                table.parent_hash[row] = known[block_idx]
            else:
                token_ids = table.token_ids[row, block_idx * size : (block_idx + 1) * size]
                table.parent_hash[row] = chain_hash(table.parent_hash[row], token_ids.tobytes())
            self._pool.register(
                table.blocks[row][block_idx],
                table.parent_hash[row],
                drafted=not table.has_gap[row],
            )
            if self._snapshots is not None:
                end = (block_idx + 1) * size
                self._snapshots.note(row, end, table.parent_hash[row])
        table.num_hashed[row] = num_full * size

    def _hashes(self, choice: Choice) -> list[bytes]:
        if choice.hashes is None:
            salt, digest = self._salt(choice), _digest(choice)
            choice.hashes = block_hashes(choice.token_ids, self._block_size, salt, digest)
        return choice.hashes

    def _salt(self, choice: Choice) -> str:
        """The salt of a choice's hashes; without prefix caching, one for each request."""
        salt = versioned_salt(choice.request.cache_salt, self.num_updates)
        return salt if self._prefix_caching else f"{choice.arrival}/{salt}"


def _digest(choice: Choice) -> bytes:
    """The digest of a choice's adapter."""
    return b"" if choice.adapter is None else choice.adapter.digest
