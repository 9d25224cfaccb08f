"""Puts rows of scoring requests together into one step. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.arrays import Int32Array, Int64Array
from engine.contracts.adapters import NO_SLOT
from engine.contracts.scoring import ScoringPlan
from engine.contracts.shared_blocks import Sharing, pays_to_share
from engine.memory.blocks import NULL_BLOCK
from engine.memory.snapshots import NO_SNAPSHOT
from engine.rows import NO_TOKEN


class Rows(NamedTuple):
    """Rows of one request in a step: n rows of T tokens in all.

    Attributes:
        token_ids: int32 [T], row after row.
        counts: int64 [n], tokens of each row.
        starts: int64 [n], position of each row's first token.
        tables: int32 [n, B], each row's blocks, padded with `NULL_BLOCK`.
        num_read: int64 [n], how many of each row's last positions are read.
        id_lists: int32 [num_read.sum(), J], ids whose values are read at each of these positions;
            [0, J] with `embeds`.
        embeds: hidden states are read, not ids.
        num_shared: leading blocks that all tables have in common, whose keys every token sees.
        source, target: the snapshots that the rows begin from and leave, where layers keep states.
        adapter: the slot of their adapter.
    """

    token_ids: Int32Array
    counts: Int64Array
    starts: Int64Array
    tables: Int32Array
    num_read: Int64Array
    id_lists: Int32Array
    embeds: bool = False
    num_shared: int = 0
    source: int = NO_SNAPSHOT
    target: int = NO_SNAPSHOT
    adapter: int = NO_SLOT


def make_plan(parts: Sequence[Rows], block_size: int, *, keeps_states: bool = False) -> ScoringPlan:
    """Make a step of all these rows. Rows that share blocks come last.

    Positions are read in the order of `parts`. Shared blocks may be computed by other rows of the
    step, because a layer stores the keys of all rows before it attends.
    """
    shares = [pays_to_share(part.counts, part.num_shared * block_size) for part in parts]
    sizes = [len(part.counts) for part in parts]
    ordered = [parts[i] for i in np.argsort(shares, kind="stable")]
    counts = np.concatenate([part.counts for part in ordered])
    starts = np.concatenate([part.starts for part in ordered])
    tables = _stacked([part.tables for part in ordered], NULL_BLOCK)
    ends = np.cumsum(counts)
    rows = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(len(rows)) + (starts + counts - ends)[rows]
    blocks = tables[rows, positions // block_size].astype(np.int64)
    # The place of each row of `parts` in the step. A row's last position read is its last token.
    places = np.argsort(np.argsort(np.repeat(shares, sizes), kind="stable"))
    num_read = np.concatenate([part.num_read for part in parts])
    embeds = np.repeat(np.repeat([part.embeds for part in parts], sizes), num_read)
    read_shift = np.repeat(ends[places] - np.cumsum(num_read), num_read)
    read = np.arange(len(read_shift)) + read_shift
    return ScoringPlan(
        token_ids=np.concatenate([part.token_ids for part in ordered]),
        positions=positions,
        query_starts=np.concatenate([[0], ends]).astype(np.int32),
        seq_lens=(starts + counts).astype(np.int32),
        block_tables=tables,
        slots=blocks * block_size + positions % block_size,
        sharing=_sharing(ordered, sum(shares)),
        read_tokens=read[~embeds],
        embed_tokens=read[embeds],
        id_lists=_stacked([part.id_lists for part in parts], NO_TOKEN),
        state_sources=_of_rows(ordered, "source") if keeps_states else None,
        state_targets=_of_rows(ordered, "target") if keeps_states else None,
        adapters=_of_rows(ordered, "adapter") if _any_adapter(parts) else None,
    )


def _any_adapter(parts: Sequence[Rows]) -> bool:
    return any(part.adapter != NO_SLOT for part in parts)


def _of_rows(parts: Sequence[Rows], name: str) -> Int32Array:
    """A number of each part for each of its rows."""
    numbers = np.array([getattr(part, name) for part in parts], dtype=np.int32)
    return np.repeat(numbers, [len(part.counts) for part in parts])


def _sharing(parts: Sequence[Rows], num_groups: int) -> Sharing | None:
    """The blocks that the rows of each of the last `num_groups` parts share."""
    if not num_groups:
        return None
    row_starts = np.cumsum([0, *(len(part.counts) for part in parts)])
    num_blocks = np.array([part.num_shared for part in parts[-num_groups:]], dtype=np.int32)
    return Sharing(row_starts[-num_groups - 1 :], num_blocks)


def _stacked(parts: Sequence[Int32Array], padding: int) -> Int32Array:
    """Stack arrays [n, width], narrow ones padded on the right."""
    width = max(part.shape[1] for part in parts)
    stacked = np.full((sum(map(len, parts)), width), padding, dtype=np.int32)
    start = 0
    for part in parts:
        stacked[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return stacked
