# mypy: allow-untyped-defs, allow-incomplete-defs
"""Shares of a row's keys at fixed positions, and what programs leave of them for one another.

Letters in comments as in `attention`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.contracts.attention import AttentionSpec
from engine.kernels.decode.split_keys import rescale
from engine.kernels.prefill_attention import Sums
from sampling.device.triton_support import constexpr, jit, tl

LEVELS = ((1024, 64), (8192, 256), (1 << 30, 1024))
"""Up to which position shares have how many keys: few at first, so that programs have work of a
lone row that is short, more where a row has many shares."""
PROGRAMS = 6
"""Programs a processor of the GPU that decode at once; few rows are divided among as many."""
MOST_PROGRAMS = 64
"""Most programs that divide a row and key head."""
SCRATCH_BYTES = 64 << 20
"""Room for what they leave; where it is short, only fewer rows are divided."""

_FINE, _MIDDLE = constexpr(LEVELS[0][0]), constexpr(LEVELS[1][0])
_SHORT, _LONGER, _LONGEST = (constexpr(length) for _, length in LEVELS)
ONES = constexpr(16)  # columns of ones that weights are multiplied with


def num_shares(num_keys: int) -> int:
    """The number of shares that `num_keys` keys lie in."""
    count = before = 0
    for position, length in LEVELS:
        count += -(-max(min(num_keys, position) - before, 0) // length)
        before = position
    return count


class ShareScratch:
    """Owns what programs leave of a row's shares for the last of them, for all layers.

    Args:
        max_keys: most keys of a row. max_query_len: most query tokens of a decoding row.

    Attributes:
        sums, stats: float32, of shares: weighted values; maxima and sums of weights.
        arrivals: int32, programs that have come, 0 between launches.
    """

    def __init__(
        self,
        specs: list[AttentionSpec],
        max_rows: int,
        max_keys: int,
        device: torch.device,
        max_query_len: int = 1,
    ) -> None:
        self.most = num_shares(max_keys)
        self.max_query_len = max_query_len
        self._num_programs = 8
        if device.type == "cuda":
            processors = torch.cuda.get_device_properties(device).multi_processor_count
            self._num_programs = PROGRAMS * processors
        heads = [spec.num_q_heads // spec.num_kv_heads for spec in specs]
        queries = max(heads) * max_query_len
        head_dim = max(spec.head_dim for spec in specs)
        room = SCRATCH_BYTES // (4 * self.most * queries * (head_dim + 2))
        fewest = max(spec.num_kv_heads for spec in specs)
        self._divided = max(fewest, min(self._num_programs // 2, room))
        cells = self._divided * self.most * queries
        self.sums = torch.empty(cells * head_dim, dtype=torch.float32, device=device)
        self.stats = torch.empty(cells * 2, dtype=torch.float32, device=device)
        self.arrivals = torch.zeros(max_rows * fewest, dtype=torch.int32, device=device)

    def programs(self, num_rows: int, kv_heads: int) -> int:
        """How many programs divide a row and key head."""
        if num_rows * kv_heads > self._divided:
            return 1
        return max(1, min(MOST_PROGRAMS, self.most, self._num_programs // (num_rows * kv_heads)))


class ShareRoom(NamedTuple):
    """The pointers of `ShareScratch`, and its shares a row; one kernel argument."""

    sums: torch.Tensor
    stats: torch.Tensor
    arrivals: torch.Tensor
    most: int


@jit
def no_sums(shape: tl.constexpr):
    """Sums over no key; the sum of weights is in each of ONES columns."""
    return Sums(
        tl.full((shape.padded_queries,), float("-inf"), tl.float32),
        tl.full((shape.padded_queries, ONES), 0.0, tl.float32),
        tl.full((shape.padded_queries, shape.padded_dim), 0.0, tl.float32),
    )


@jit
def merged(sums, share):
    """The sums over the keys of `sums` and those of the share after them."""
    higher = tl.maximum(sums.top, share.top)
    mine, theirs = rescale(sums.top, higher)[:, None], rescale(share.top, higher)[:, None]
    total = tl.fma(share.total, theirs, sums.total * mine)
    return Sums(higher, total, tl.fma(share.acc, theirs, sums.acc * mine))


@jit
def share_at(position):
    """The share that a position is in."""
    fine: tl.constexpr = _FINE // _SHORT
    middle: tl.constexpr = fine + (_MIDDLE - _FINE) // _LONGER
    coarse = middle + (position - _MIDDLE) // _LONGEST
    coarse = tl.where(position < _MIDDLE, fine + (position - _FINE) // _LONGER, coarse)
    return tl.where(position < _FINE, position // _SHORT, coarse)


@jit
def start_of(share):
    """The first position of a share."""
    fine: tl.constexpr = _FINE // _SHORT
    middle: tl.constexpr = fine + (_MIDDLE - _FINE) // _LONGER
    coarse = _MIDDLE + (share - middle) * _LONGEST
    coarse = tl.where(share < middle, _FINE + (share - fine) * _LONGER, coarse)
    return tl.where(share < fine, share * _SHORT, coarse)


@jit
def ends_share(position):
    """Whether a share ends before a position that is not 0."""
    length = tl.where(position <= _MIDDLE, _LONGER, _LONGEST)
    return position % tl.where(position <= _FINE, _SHORT, length) == 0


@jit
def leave(scratch, cell, queries, sums, count: tl.constexpr, shape: tl.constexpr):
    """Leave a share's sums in its cell."""
    m, d = tl.arange(0, shape.padded_queries), tl.arange(0, shape.padded_dim)
    stat = scratch.stats + (cell * count + m) * 2
    tl.store(stat, sums.top, mask=queries.inside)
    tl.store(stat + 1, tl.max(sums.total, 1), mask=queries.inside)
    at = (cell * count + m)[:, None] * shape.head_dim + d[None, :]
    tl.store(scratch.sums + at, sums.acc, mask=queries.mask)


@jit
def left(scratch, cell, queries, count: tl.constexpr, shape: tl.constexpr):
    """Load what was left in a cell, past the first-level cache with what was there before."""
    m, d = tl.arange(0, shape.padded_queries), tl.arange(0, shape.padded_dim)
    stat = scratch.stats + (cell * count + m) * 2
    at = (cell * count + m)[:, None] * shape.head_dim + d[None, :]
    top = tl.load(stat, mask=queries.inside, other=float("-inf"), cache_modifier=".cg")
    total = tl.load(stat + 1, mask=queries.inside, other=0.0, cache_modifier=".cg")
    acc = tl.load(scratch.sums + at, mask=queries.mask, other=0.0, cache_modifier=".cg")
    return Sums(top, tl.broadcast_to(total[:, None], (shape.padded_queries, ONES)), acc)
