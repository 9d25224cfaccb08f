"""Decides where rows' states are kept as snapshots, and when these can be found. No torch.

Snapshots are wanted in a prompt at the end of the last block that another choice could reuse, and
where it leaves what is known of its prefix (others will branch there too); in a reply every
`REPLY_TOKENS`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.arrays import Int64Array
from engine.config import CacheConfig
from engine.contracts.info import EngineInfo
from engine.memory.snapshots import SnapshotPool
from engine.plan import SnapshotGrant
from engine.planning.drafting import DraftRules
from engine.rows import BoolArray, Choice, RowTable

REPLY_TOKENS = 256
"""Tokens of a reply from one snapshot to the next, rounded up to whole blocks."""
NEVER = np.iinfo(np.int64).max


class RowSnapshots:
    """The snapshots that running rows make.

    A row's next snapshot in its reply is granted with the first step that may reach its end, and
    once the one before was read back, since a grant replaces the last.

    Args:
        block_size: tokens of a block. multiple: snapshots end at multiples of so many tokens.
        reuses_replies: whether later choices may find what others computed.

    Attributes:
        pool: the snapshots of all rows.
    """

    def __init__(
        self,
        pool: SnapshotPool,
        table: RowTable,
        drafting: DraftRules,
        block_size: int,
        multiple: int,
        *,
        reuses_replies: bool,
    ) -> None:
        self.pool = pool
        self._table = table
        self._drafting = drafting
        self._block_size, self._multiple = block_size, multiple
        self._reuses_replies = reuses_replies
        self._interval = -(-REPLY_TOKENS // multiple) * multiple
        self._next_end: Int64Array = np.full(table.max_rows, NEVER, dtype=np.int64)
        self._reserved: list[dict[int, int]] = [{} for _ in range(table.max_rows)]  # by their ends
        self._hashes: dict[int, dict[int, bytes]] = {}  # by row and end, of those to be registered
        self._grants: list[SnapshotGrant] = []

    def admit(
        self, row: int, choice: Choice, snapshot: int, num_restored: int, num_known: int
    ) -> None:
        """Reserve what a row that was just claimed is to keep of its prompt.

        Args:
            snapshot: what it restores. num_restored: leading blocks that it does not compute.
            num_known: leading blocks that were found, some of them perhaps without a snapshot.
        """
        self.pool.restore(snapshot)
        ends, size = set[int](), self._block_size
        if self._reuses_replies or (choice.request.n > 1 and choice.index == 0):
            last = (choice.prompt_len - 1) // size - self._drafting.looks_ahead
            ends.add(last * size // self._multiple * self._multiple)
        if self._reuses_replies:
            ends.add(num_known * size // self._multiple * self._multiple)
            self._next_end[row] = self._next_in_reply(int(self._table.prefill_end[row]))
        self._reserve(row, sorted(end for end in ends if end > num_restored * size))

    def _next_in_reply(self, num_computed: int) -> int:
        return (num_computed // self._interval + 1) * self._interval

    def _reserve(self, row: int, ends: list[int]) -> None:
        reserved = {}
        for end in ends:
            snapshot = self.pool.reserve()
            if snapshot is not None:
                reserved[end] = snapshot
        if reserved:
            self._reserved[row] |= reserved
            self._grants.append(SnapshotGrant(row, tuple(reserved), tuple(reserved.values())))

    def num_steps_without(self, rows: Int64Array) -> int:
        """The steps of one token a row in which none of rows [n] is granted a snapshot."""
        return int((self._next_end[rows] - self._table.num_computed[rows]).min()) - 1

    def take(self, rows: Int64Array, ends: Int64Array, decodes: BoolArray) -> list[SnapshotGrant]:
        """The grants to be published with a step.

        Args:
            rows: int64 [R], of the step. ends: int64 [R], upper bounds of the tokens each has
                computed after it. decodes: bool [R].
        """
        due = decodes & (self._next_end[rows] <= ends)
        for row, end in zip(rows[due].tolist(), ends[due].tolist(), strict=True):
            if not self._reserved[row]:
                self._reserve(row, [int(self._next_end[row])])
            self._next_end[row] = self._next_in_reply(end)
        self.pool.planned()
        grants, self._grants = self._grants, []
        return grants

    def note(self, row: int, end: int, block_hash: bytes) -> None:
        """Note the hash of a row's block that ends at `end` and can be found."""
        if end in self._reserved[row]:
            self._hashes.setdefault(row, {})[end] = block_hash

    def register(self) -> None:
        """Let snapshots be found whose blocks can be, once steps that made them were read back.

        A draft enters the state a step after it was accepted.
        """
        table, lag = self._table, self._drafting.num_tokens
        for row, hashes in list(self._hashes.items()):
            for end in list(hashes):
                if end <= table.prefill_end[row] or end + lag <= table.num_settled[row]:
                    self.pool.register(self._reserved[row].pop(end), hashes.pop(end))
            if not hashes:
                del self._hashes[row]

    def release(self, row: int) -> None:
        """Give up what a row has reserved. Steps in flight write there before any other row."""
        for snapshot in self._reserved[row].values():
            self.pool.release(snapshot)
        self._reserved[row] = {}
        self._hashes.pop(row, None)
        self._next_end[row] = NEVER
        self._grants = [grant for grant in self._grants if grant.row != row]

    def check(self, others: Sequence[int] = ()) -> None:
        """Assert that the pool agrees with rows and others who reserved some; for tests."""
        own = [snapshot for reserved in self._reserved for snapshot in reserved.values()]
        self.pool.check([*own, *others])


def row_snapshots(
    config: CacheConfig, info: EngineInfo, drafting: DraftRules, table: RowTable
) -> RowSnapshots | None:
    """The snapshots of an engine's rows; None where no layer keeps a state."""
    if info.num_snapshots is None:
        return None
    return RowSnapshots(
        SnapshotPool(info.num_snapshots, info.bytes_per_snapshot),
        table,
        drafting,
        config.block_size,
        info.snapshot_multiple,
        reuses_replies=config.prefix_caching,
    )
