"""Puts rows of scoring requests together into one step. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.arrays import Int32Array, Int64Array
from engine.contracts.adapters import NO_SLOT
from engine.contracts.scoring import PlanStates, ScoringPlan
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
        sources, targets: int32 [n], the snapshots that rows begin from and leave, where layers keep
            states.
        num_shared: leading blocks that all tables have in common, whose keys every token sees.
        adapter: the slot of their adapter.
    """

    token_ids: Int32Array
    counts: Int64Array
    starts: Int64Array
    tables: Int32Array
    num_read: Int64Array
    id_lists: Int32Array
    sources: Int32Array
    targets: Int32Array
    embeds: bool = False
    num_shared: int = 0
    adapter: int = NO_SLOT


def no_snapshots(num_rows: int) -> Int32Array:
    """What rows begin from or leave where it is no snapshot, int32 [num_rows]."""
    return np.full(num_rows, NO_SNAPSHOT, dtype=np.int32)


def make_plan(parts: Sequence[Rows], block_size: int, *, keeps_states: bool = False) -> ScoringPlan:
    """Make a step of all these rows. Rows that share blocks come last.

    Positions are read in the order of `parts`. Shared blocks may be computed by other rows of the
    step, because a layer stores the keys of all rows before it attends. Within a part, rows that
    begin from what others leave come after them.
    """
    # A part of one row shares with none.
    shares = [
        len(part.counts) > 1 and pays_to_share(part.counts, part.num_shared * block_size)
        for part in parts
    ]
    counts, starts, token_ids, num_read = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("counts", "starts", "token_ids", "num_read")
    )
    tables = _stacked([part.tables for part in parts], NULL_BLOCK)
    order = _order(parts, shares) if keeps_states or any(shares) else None
    firsts = np.cumsum(counts) - counts
    if order is not None:
        counts, starts, firsts, tables = counts[order], starts[order], firsts[order], tables[order]
    ends = np.cumsum(counts)
    rows = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(len(rows)) - (ends - counts)[rows]
    positions = places + starts[rows]
    blocks = tables[rows, positions // block_size].astype(np.int64)
    read_tokens, embed_tokens = _read(
        parts, num_read, ends if order is None else ends[np.argsort(order)]
    )
    return ScoringPlan(
        token_ids=token_ids if order is None else token_ids[firsts[rows] + places],
        positions=positions,
        query_starts=np.concatenate([[0], ends]).astype(np.int32),
        seq_lens=(starts + counts).astype(np.int32),
        block_tables=tables,
        slots=blocks * block_size + positions % block_size,
        sharing=_sharing(parts, shares),
        read_tokens=read_tokens,
        embed_tokens=embed_tokens,
        id_lists=_stacked([part.id_lists for part in parts], NO_TOKEN),
        states=_states(parts, order) if keeps_states else None,
        adapters=_adapters(parts, order),
    )


def _order(parts: Sequence[Rows], shares: Sequence[bool]) -> Int64Array:
    """The order of the rows of `parts` in the step, int64 [R]."""
    sizes = [len(part.counts) for part in parts]
    is_after = np.concatenate([np.isin(part.sources, _left(part.targets)) for part in parts])
    return np.lexsort((is_after, np.repeat(np.arange(len(parts)), sizes), np.repeat(shares, sizes)))


def _read(
    parts: Sequence[Rows], num_read: Int64Array, ends: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """The tokens whose logits are read, and those whose hidden state is.

    Args:
        num_read, ends: int64 [R], of each row of `parts`: how many of its last tokens are read, and
            where it ends in the step.
    """
    shift = np.repeat(ends - np.cumsum(num_read), num_read)
    read = np.arange(len(shift)) + shift
    if not any(part.embeds for part in parts):
        return read, read[:0]
    sizes = [len(part.counts) for part in parts]
    embeds = np.repeat(np.repeat([part.embeds for part in parts], sizes), num_read)
    return read[~embeds], read[embeds]


def _adapters(parts: Sequence[Rows], order: Int64Array | None) -> Int32Array | None:
    """The slots of the rows' adapters, int32 [R]; None where no row has one."""
    if all(part.adapter == NO_SLOT for part in parts):
        return None
    sizes = [len(part.counts) for part in parts]
    slots = np.repeat(np.array([part.adapter for part in parts], dtype=np.int32), sizes)
    return slots if order is None else slots[order]


def _states(parts: Sequence[Rows], order: Int64Array | None) -> PlanStates:
    """The snapshots that rows begin from and leave."""
    sources, targets = (
        np.concatenate([getattr(part, name) for part in parts]).astype(np.int32)
        for name in ("sources", "targets")
    )
    if order is not None:
        sources, targets = sources[order], targets[order]
    return PlanStates(sources, targets, _cut(sources, targets))


def _left(targets: Int32Array) -> Int32Array:
    left: Int32Array = targets[targets != NO_SNAPSHOT]
    return left


def _cut(sources: Int32Array, targets: Int32Array) -> Int32Array:
    """The first row of each part: its rows touch no snapshot that another one of it writes."""
    if not len(_left(targets)):
        return np.zeros(1, dtype=np.int32)
    starts, read, written = [0], set[int](), set[int]()
    for row, (source, target) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
        if source in written or target in written or (target in read and target != NO_SNAPSHOT):
            starts.append(row)
            read, written = set(), set()
        read.add(source)
        if target != NO_SNAPSHOT:
            written.add(target)
    return np.array(starts, dtype=np.int32)


def _sharing(parts: Sequence[Rows], shares: Sequence[bool]) -> Sharing | None:
    """The blocks that the rows of each part share that `shares` says, at the end of the step."""
    groups = [part for part, is_group in zip(parts, shares, strict=True) if is_group]
    if not groups:
        return None
    num_apart = sum(len(part.counts) for part in parts) - sum(len(each.counts) for each in groups)
    row_starts = np.cumsum([num_apart, *(len(part.counts) for part in groups)])
    return Sharing(row_starts, np.array([part.num_shared for part in groups], dtype=np.int32))


def _stacked(parts: Sequence[Int32Array], padding: int) -> Int32Array:
    """Stack arrays [n, width], narrow ones padded on the right."""
    width = max(part.shape[1] for part in parts)
    stacked = np.full((sum(map(len, parts)), width), padding, dtype=np.int32)
    start = 0
    for part in parts:
        stacked[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return stacked
