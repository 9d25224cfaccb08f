"""A scoring request as rows of tokens: which are computed, after which blocks. No torch.

An item with one branch is one row: the query's tokens after its last full block, the item, the
branch. An item with several branches begins with a *stem*, a row of full blocks of which nothing is
read. A row for each branch follows, with the tokens that the stem leaves over, at least one, and
the branch. So a row begins at a block's boundary, and its blocks are its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.arrays import Int32Array, Int64Array
from engine.messages.request import ScoringRequest


class RowLayout(NamedTuple):
    """The rows of a request of N items: R rows of T tokens in all.

    Attributes:
        token_ids: int32 [T], row after row.
        offsets: int64 [R + 1]; row r owns token_ids[offsets[r]:offsets[r + 1]].
        stems: int64 [R], blocks of the item's stem, which come before a branch's own; 0 for stems
            and for items without one.
        num_blocks: int64 [R], blocks that a row fills itself.
        num_read: int64 [R], last positions that are read.
        first_rows: int64 [N + 1]; item i owns rows first_rows[i]:first_rows[i + 1], its stem first.
    """

    token_ids: Int32Array
    offsets: Int64Array
    stems: Int64Array
    num_blocks: Int64Array
    num_read: Int64Array
    first_rows: Int64Array

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.stems)

    @property
    def longest(self) -> int:
        """The most blocks that a row attends to beyond the query's full ones."""
        return int((self.stems + self.num_blocks).max())

    def is_stem(self, row: int) -> bool:
        """Whether branches follow this row's blocks."""
        return row + 1 < self.num_rows and self.stems[row] == 0 < self.stems[row + 1]

    def item_tokens(self, first: int, count: int) -> Int64Array:
        """Tokens of each of the next `count` items, from item `first` on."""
        return np.diff(self.offsets[self.first_rows[first : first + count + 1]])

    def item_stems(self, first: int, count: int) -> Int64Array:
        """Stems of each of the next `count` items, from item `first` on: 0 or 1."""
        last_rows = self.first_rows[first + 1 : first + count + 1] - 1
        return (self.stems[last_rows] > 0).astype(np.int64)

    def item_blocks(self, first: int, count: int) -> Int64Array:
        """Blocks of each of the next `count` items, from item `first` on."""
        rows = self.first_rows[first : first + count + 1]
        ends = np.cumsum(self.num_blocks[rows[0] : rows[-1]])
        sizes: Int64Array = np.diff(np.concatenate([[0], ends])[rows - rows[0]])
        return sizes


def layout_of(request: ScoringRequest, shared_len: int, block_size: int) -> RowLayout:
    """Lay out the rows of a request whose first `shared_len` query tokens are in shared blocks."""
    rest = request.query_token_ids[shared_len:]
    if len(request.num_read) == 1:
        return _lone_row(request, rest, block_size)
    num_items = len(request.item_lens)
    whole_lens = request.item_lens.astype(np.int64) + len(rest)
    whole = _preceded(rest, request.item_token_ids, request.item_lens.astype(np.int64))
    if request.branches is None:
        counts, branch_lens = np.ones(num_items, dtype=np.int64), np.zeros(num_items, np.int64)
        branch_ids = request.item_token_ids[:0]
    else:
        counts = request.branches.counts.astype(np.int64)
        branch_lens = request.branches.lens.astype(np.int64)
        branch_ids = request.branches.token_ids
    stem_blocks = np.where(counts > 1, (whole_lens - 1) // block_size, 0)
    num_rows = counts + (stem_blocks > 0)
    first_rows = np.concatenate([[0], np.cumsum(num_rows)])
    item_of = np.repeat(np.arange(num_items), num_rows)
    is_stem = np.zeros(len(item_of), dtype=bool)
    is_stem[first_rows[:-1][stem_blocks > 0]] = True
    stem_lens = stem_blocks[item_of] * block_size
    # A row is a part of its item and then a branch, the branch of a stem being empty.
    begins = np.cumsum(whole_lens)[item_of] - whole_lens[item_of] + np.where(is_stem, 0, stem_lens)
    part_lens = np.where(is_stem, stem_lens, whole_lens[item_of] - stem_lens)
    own_lens = np.zeros(len(item_of), dtype=np.int64)
    own_lens[~is_stem] = branch_lens
    own_begins = len(whole) + np.cumsum(own_lens) - own_lens
    slices = (
        np.stack(pair, axis=1).ravel() for pair in ((begins, own_begins), (part_lens, own_lens))
    )
    num_read = np.zeros(len(item_of), dtype=np.int64)
    num_read[~is_stem] = request.num_read
    lens = part_lens + own_lens
    return RowLayout(
        token_ids=_joined(np.concatenate([whole, branch_ids]), *slices),
        offsets=np.concatenate([[0], np.cumsum(lens)]),
        stems=np.where(is_stem, 0, stem_blocks[item_of]),
        num_blocks=-(-lens // block_size),
        num_read=num_read,
        first_rows=first_rows,
    )


def _lone_row(request: ScoringRequest, rest: Int32Array, block_size: int) -> RowLayout:
    """The layout of a request that has one item with one branch, if any.

    It is that of the question that is asked alone, where the host's time counts.
    """
    branch_ids = request.item_token_ids[:0]
    if request.branches is not None:
        branch_ids = request.branches.token_ids
    token_ids = np.concatenate([rest, request.item_token_ids, branch_ids])
    return RowLayout(
        token_ids=token_ids,
        offsets=np.array([0, len(token_ids)]),
        stems=np.zeros(1, dtype=np.int64),
        num_blocks=np.array([-(-len(token_ids) // block_size)]),
        num_read=request.num_read.astype(np.int64),
        first_rows=np.array([0, 1]),
    )


def _preceded(rest: Int32Array, token_ids: Int32Array, lens: Int64Array) -> Int32Array:
    """Put `rest` in front of each item."""
    if not len(rest):
        return token_ids
    begins = len(rest) + np.cumsum(lens) - lens
    starts = np.stack([np.zeros_like(begins), begins], axis=1).ravel()
    both = np.stack([np.full_like(lens, len(rest)), lens], axis=1).ravel()
    return _joined(np.concatenate([rest, token_ids]), starts, both)


def _joined(token_ids: Int32Array, starts: Int64Array, lens: Int64Array) -> Int32Array:
    """The slices token_ids[start : start + len], end to end."""
    ends = np.cumsum(lens)
    joined: Int32Array = token_ids[np.arange(ends[-1]) + np.repeat(starts - (ends - lens), lens)]
    return joined
