"""One scoring request: which of its tokens are planned, and which positions are read. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from engine.arrays import Float32Array, Float64Array, Int32Array, Int64Array
from engine.contracts.adapters import NO_SLOT, AdapterVersion
from engine.memory.blocks import NULL_BLOCK, block_hashes, versioned_salt
from engine.memory.snapshots import NO_SNAPSHOT
from engine.messages.request import ScoringRequest
from engine.messages.step_output import Finish, ItemScores
from engine.scoring.layout import RowLayout, layout_of
from engine.scoring.packing import Rows, no_snapshots
from engine.scoring.states import ScoringStates


@dataclass(eq=False)
class ScoringProgress:
    """A scoring request, waiting or active.

    Attributes:
        frontend: identity of the frontend that submitted the request.
        arrival: number in order of submission.
        block_size: tokens a block.
        shared_len: tokens of the query's full blocks, which all items share.
        layout: the rows of its items.
        values, others, best_ids, best, log_sums: the answer, as in `ItemScores`, filled as steps
            are read back.
        hidden: hidden states as they are read back, where they are the answer.
        hashes: hashes of the shared blocks.
        blocks: the shared blocks, once the request is active.
        spare: blocks for the longest stem and row, held as long, so that the request can always go
            on.
        num_computed: shared tokens scheduled, those found computed included.
        num_cached: shared tokens found computed.
        next_item: index of the first item that is not scheduled whole.
        next_row: index of the first row that is not scheduled whole.
        num_split: tokens of that row which are scheduled.
        num_planned, num_read: positions whose reading is scheduled, and read back.
        last_turn: number of the step that last served it.
        ended: it was answered, or nobody waits for it any more.
        states: where layers keep states, those of the request.
        num_updates: how often the weights were written, as its hashes say.
        adapter: that it is computed with; None for the base model.
    """

    frontend: bytes
    request: ScoringRequest
    arrival: int
    block_size: int
    shared_len: int
    layout: RowLayout
    values: Float32Array
    others: Float32Array
    best_ids: Int32Array
    best: Float32Array
    log_sums: Float64Array
    hashes: list[bytes]
    hidden: list[Float32Array] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    spare: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_cached: int = 0
    next_item: int = 0
    next_row: int = 0
    num_split: int = 0
    num_planned: int = 0
    num_read: int = 0
    last_turn: int = -1
    ended: bool = False
    states: ScoringStates | None = None
    num_updates: int = 0
    adapter: AdapterVersion | None = None

    @classmethod
    def of(
        cls,
        frontend: bytes,
        request: ScoringRequest,
        arrival: int,
        block_size: int,
        *,
        num_updates: int = 0,
        adapter: AdapterVersion | None = None,
    ) -> ScoringProgress:
        """The progress of a request of which nothing is computed.

        Args:
            num_updates: how often the weights were written.
        """
        query = request.query_token_ids
        shared_len = len(query) // block_size * block_size
        num_read = int(request.num_read.sum())
        progress = cls(
            frontend=frontend,
            request=request,
            arrival=arrival,
            block_size=block_size,
            shared_len=shared_len,
            layout=layout_of(request, shared_len, block_size),
            values=np.zeros((num_read, request.id_lists.shape[1]), dtype=np.float32),
            others=np.zeros(num_read, dtype=np.float32),
            best_ids=np.zeros(num_read, dtype=np.int32),
            best=np.zeros(num_read, dtype=np.float32),
            log_sums=np.zeros(num_read, dtype=np.float64),
            hashes=[],
            num_updates=num_updates,
            adapter=adapter,
        )
        progress.hash_query()
        return progress

    def hash_query(self) -> None:
        """Hash the shared blocks, once more when the adapter is there."""
        digest = b"" if self.adapter is None else self.adapter.digest
        query = self.request.query_token_ids[: self.shared_len]
        salt = versioned_salt(self.request.cache_salt, self.num_updates)
        self.hashes = block_hashes(query, self.block_size, salt, digest)

    @property
    def slot(self) -> int:
        """The slot of the adapter, which an active request pins."""
        return NO_SLOT if self.adapter is None else self.adapter.slot

    @property
    def rank(self) -> tuple[int, int, int]:
        """The order of service among active requests, which take turns within a priority."""
        return (self.request.priority, self.last_turn, self.arrival)

    @property
    def planned(self) -> bool:
        """Whether every item is scheduled whole."""
        return self.next_row == self.layout.num_rows

    @property
    def is_within_item(self) -> bool:
        """Whether a part of the next item is scheduled."""
        return bool(self.num_split) or self.next_row != self.layout.first_rows[self.next_item]

    @property
    def num_left(self) -> int:
        """Tokens of the next row that are not scheduled."""
        return int(self.layout.offsets[self.next_row + 1] - self._token)

    @property
    def own_spare(self) -> list[int]:
        """The spare blocks that the next row may fill: those after its stem's."""
        stem, count = self.layout.stems[self.next_row], self.layout.num_blocks[self.next_row]
        return self.spare[stem : stem + count]

    @property
    def _token(self) -> int:
        return int(self.layout.offsets[self.next_row]) + self.num_split

    def scores(self, finish: Finish, error: str | None) -> ItemScores:
        """The answer of a request that ended; without values where it did before its last one."""
        num_read = len(self.others) if finish == Finish.LENGTH else 0
        return ItemScores(
            handle=self.request.handle,
            finish=finish,
            num_cached=self.num_cached,
            values=self.values[:num_read],
            others=self.others[:num_read],
            best_ids=self.best_ids[:num_read],
            best=self.best[:num_read],
            log_sums=self.log_sums[:num_read],
            hidden=np.concatenate(self.hidden) if num_read and self.hidden else None,
            error=error,
        )

    def query_rows(self, count: int) -> Rows:
        """Schedule the next `count` tokens of the query's full blocks."""
        start, self.num_computed = self.num_computed, self.num_computed + count
        source = target = NO_SNAPSHOT
        if self.states is not None:
            source = self.states.of_query
            self.states.of_query = target = self.states.query
        return Rows(
            token_ids=self.request.query_token_ids[start : start + count],
            counts=np.array([count]),
            starts=np.array([start]),
            tables=np.array([self.blocks], dtype=np.int32),
            num_read=np.array([0]),
            id_lists=self._take_lists(0),
            sources=np.array([source], dtype=np.int32),
            targets=np.array([target], dtype=np.int32),
            adapter=self.slot,
        )

    def row_part(self, count: int, own: list[int]) -> Rows:
        """Schedule the next `count` tokens of the next row, which fills the blocks `own`.

        The row's stem is in the first spare blocks, where this has scheduled it before.
        """
        layout, row = self.layout, self.next_row
        first, start, end = self._token, self.num_split, self.num_split + count
        length = start + self.num_left
        # The positions read may lie in several steps of a split row.
        num_read = max(end - max(length - int(layout.num_read[row]), start), 0)
        stem = int(layout.stems[row])
        self.num_split = 0 if end == length else end
        if end == length:
            self.next_row += 1
            self.next_item += int(self.next_row == layout.first_rows[self.next_item + 1])
        return Rows(
            token_ids=layout.token_ids[first : first + count],
            counts=np.array([count]),
            starts=np.array([self.shared_len + stem * self.block_size + start]),
            tables=np.array([[*self.blocks, *self.spare[:stem], *own]], dtype=np.int32),
            num_read=np.array([num_read]),
            id_lists=self._take_lists(num_read),
            embeds=self.request.embeds,
            sources=np.array([self._source(row, is_split=start > 0)]),
            targets=np.array([self._target(row, is_split=end < length)]),
            adapter=self.slot,
        )

    def _source(self, row: int, *, is_split: bool) -> int:
        """The snapshot that a part of a row begins from; `is_split`: that goes on with the row."""
        if self.states is None:
            return NO_SNAPSHOT
        if is_split:
            return self.states.split
        return self.states.stem if self.layout.stems[row] else self.states.of_query

    def _target(self, row: int, *, is_split: bool) -> int:
        """The snapshot that a part of a row leaves; `is_split`: that is not the row's last."""
        if self.states is None:
            return NO_SNAPSHOT
        if is_split:
            return self.states.split
        return self.states.stem if self.layout.is_stem(row) else NO_SNAPSHOT

    def item_rows(self, count: int, own: list[int], stems: list[int]) -> Rows:
        """Schedule the next `count` items whole.

        Args:
            own: blocks that their rows fill in order.
            stems: snapshots that their stems leave in order, where layers keep states.
        """
        layout, first = self.layout, self.next_row
        self.next_item += count
        self.next_row = end = int(layout.first_rows[self.next_item])
        rows = slice(first, end)
        shared = np.array(self.blocks, dtype=np.int32)
        tables = _tables(np.array(own, dtype=np.int32), layout.stems[rows], layout.num_blocks[rows])
        num_read = layout.num_read[rows]
        return Rows(
            token_ids=layout.token_ids[layout.offsets[first] : layout.offsets[end]],
            counts=np.diff(layout.offsets[first : end + 1]),
            starts=self.shared_len + layout.stems[rows] * self.block_size,
            tables=np.hstack([np.broadcast_to(shared, (end - first, len(shared))), tables]),
            num_read=num_read,
            id_lists=self._take_lists(int(num_read.sum())),
            embeds=self.request.embeds,
            num_shared=len(shared),
            **self._item_states(first, end, stems),
            adapter=self.slot,
        )

    def _item_states(self, first: int, end: int, stems: list[int]) -> dict[str, Int32Array]:
        """What the rows of whole items begin from and leave; `stems` as of `item_rows`."""
        sources, targets = no_snapshots(end - first), no_snapshots(end - first)
        if self.states is None:
            return {"sources": sources, "targets": targets}
        is_branch = self.layout.stems[first:end] > 0
        is_stem = ~is_branch & np.append(is_branch[1:], False)
        sources[:] = self.states.of_query
        targets[is_stem] = stems
        sources[is_branch] = np.array(stems, dtype=np.int32)[np.cumsum(is_stem)[is_branch] - 1]
        return {"sources": sources, "targets": targets}

    def _take_lists(self, count: int) -> Int32Array:
        """Ids of the next `count` positions read, int32 [count, J]; the lists are used in turn."""
        lists = self.request.id_lists
        first, self.num_planned = self.num_planned, self.num_planned + count
        if self.request.embeds:
            return lists[:0]
        return lists[np.arange(first, first + count) % len(lists)]


def _tables(blocks: Int32Array, stems: Int64Array, num_blocks: Int64Array) -> Int32Array:
    """Deal blocks to rows in order: the tables of each row's stem and own blocks, padded."""
    begins = np.cumsum(num_blocks) - num_blocks
    # A stem is the last row before its branches that has no stem itself.
    stem_rows = np.maximum.accumulate(np.where(stems == 0, np.arange(len(stems)), 0))
    columns = np.arange(int((stems + num_blocks).max()))
    own = begins[:, None] + columns - stems[:, None]
    places = np.where(columns < stems[:, None], begins[stem_rows, None] + columns, own)
    is_used = columns < (stems + num_blocks)[:, None]
    return np.where(is_used, blocks[np.where(is_used, places, 0)], NULL_BLOCK).astype(np.int32)
