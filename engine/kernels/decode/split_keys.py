# mypy: allow-untyped-defs, allow-incomplete-defs
"""Scratch and sums for a row whose keys are shared among several programs of the decode kernel.

The last share to arrive adds up what the others left, in the order of the shares: the sum does not
depend on who came last. It does depend on the number of rows, by which rows are shared: fewer rows
are shared by more programs, and a row that is shared has another order of sums. Letters in comments
as in `attention`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from engine.contracts.attention import AttentionSpec
from sampling.device.triton_support import constexpr, jit, tl

MAX_SHARES, MAX_LONE = 16, 64
"""Most programs that share a row and key head, and a lone row's."""
FULL = 2
"""Programs a processor of the GPU that keep enough keys of 16 bits on their way; of keys of 8 bits,
of which a program has half the bytes on their way, it takes twice as many."""
MOST = 16
"""Most programs a processor, where each has a long share: the last to end are then soon done."""
LONG = 256
"""Keys of a long share."""

_LONG = constexpr(LONG)


class DecodeScratch:
    """Owns what the shares of a row leave for the last of them, for all layers.

    Attributes:
        sums: float32, room for the shares' weighted values.
        stats: float32, room for their maxima and sums of weights.
        arrivals: int32, shares that have come, 0 between launches.
        max_query_len: most query tokens of a row.

    Args:
        key_size: bytes of a number of a key, as the cache stores it.
    """

    def __init__(
        self,
        specs: list[AttentionSpec],
        max_rows: int,
        device: torch.device,
        max_query_len: int = 1,
        key_size: int = 2,
    ) -> None:
        self._num_full, self._num_programs = 4, 8
        if device.type == "cuda":
            num_processors = torch.cuda.get_device_properties(device).multi_processor_count
            self._num_full = (2 * FULL if key_size == 1 else FULL) * num_processors
            self._num_programs = MOST * num_processors
        heads = max(spec.num_q_heads for spec in specs)
        kv_heads = min(spec.num_kv_heads for spec in specs)
        # shares > 1 only while rows * kv_heads * shares <= _num_programs
        shared_rows = max(1, self._num_programs // kv_heads)
        self.max_query_len = max_query_len
        width = shared_rows * heads * max_query_len
        self.sums = torch.empty(
            width * max(spec.head_dim for spec in specs), dtype=torch.float32, device=device
        )
        self.stats = torch.empty(width * 2, dtype=torch.float32, device=device)
        most = max(spec.num_kv_heads for spec in specs)
        self.arrivals = torch.zeros(max_rows * most, dtype=torch.int32, device=device)

    def shares(self, num_rows: int, kv_heads: int) -> Shares:
        """How many programs share a row and key head."""
        most = MAX_LONE if num_rows == 1 else MAX_SHARES
        return Shares(
            *(
                max(1, min(most, num_programs // (num_rows * kv_heads)))
                for num_programs in (self._num_full, self._num_programs)
            )
        )


class Shares(NamedTuple):
    """How many programs share a row and key head.

    Attributes:
        full: as many as fill the GPU.
        most: so many where each then has `LONG` keys or more.
    """

    full: int
    most: int


class Shared(NamedTuple):
    """The pointers of `DecodeScratch`; one kernel argument."""

    sums: torch.Tensor
    stats: torch.Tensor
    arrivals: torch.Tensor


@jit
def share_of(seq_len, num_keys, full_shares, rules, shape: tl.constexpr):
    """The first key any query sees, keys a share, and how many shares there are, at least one.

    Of the row's keys the first `num_keys` are shared. See `Shares`; the launch has the most.
    """
    first = 0
    if rules.window is not None:
        first = tl.maximum(seq_len - shape.query_len + 1 - rules.window, 0)
        first = first // shape.block * shape.block
    per_share, active = divide(num_keys - first, _LONG, full_shares, tl.num_programs(2), shape)
    return first, per_share, active


@jit
def divide(num_keys, long, full_shares, most, shape: tl.constexpr):
    """Keys a share, whole blocks of them, and how many shares there are, at least one.

    As many as have `long` keys each, but at least `full_shares` and at most `most`.
    """
    num_shares = tl.minimum(tl.maximum(num_keys // long, full_shares), most)
    turns = tl.cdiv(tl.cdiv(num_keys, num_shares), shape.block)
    per_share = tl.maximum(turns, 1) * shape.block
    return per_share, tl.maximum(tl.cdiv(num_keys, per_share), 1)


@jit
def rescale(top, higher):
    """The factor from weights relative to `top` to weights relative to `higher`.

    Either is -inf where no key has been seen.
    """
    return tl.exp2(top - tl.where(higher == float("-inf"), 0.0, higher))


@jit
def gather_shares(shared, row, head, share, active, tile, top, total, acc, shape: tl.constexpr):
    """Leave a share's sums for the last of the row's and key head's shares to arrive.

    Returns:
        Whether this is the last, and maxima, sums of weights and weighted values, then of all.
    """
    place = row * shape.kv_heads + head
    cell = place * tl.num_programs(2)
    is_last = leave_share(shared, place, cell + share, active, tile, top, total, acc, shape)
    if is_last:
        top, total, acc = _add_shares(shared, cell, active, tile, shape)
    return is_last, top, total, acc


@jit
def leave_share(shared, place, cell, active, tile, top, total, acc, shape: tl.constexpr):
    """Leave a share's sums in its cell of the scratch.

    Returns:
        Whether all other shares have arrived at this `place` before; the next launch finds it as
        it was.
    """
    _leave(shared, cell, tile, top, total, acc, shape)
    tl.debug_barrier()  # all threads' stores before the arrival is announced
    arrivals = shared.arrivals + place
    is_last = tl.atomic_add(arrivals, 1) == active - 1
    if is_last:
        tl.store(arrivals, 0)
    return is_last


@jit
def _leave(shared, cell, tile, top, total, acc, shape: tl.constexpr):
    """Store a share's sums in its cell."""
    m, d = tl.arange(0, shape.padded_queries), tl.arange(0, shape.padded_dim)
    count: tl.constexpr = shape.query_len * shape.group
    stat = shared.stats + (cell * count + m) * 2
    tl.store(stat, top, mask=tile.inside)
    tl.store(stat + 1, total, mask=tile.inside)
    sums = shared.sums + m[:, None] * shape.head_dim + d[None, :]
    tl.store(sums + cell * count * shape.head_dim, acc, mask=tile.mask)


class _Left(NamedTuple):
    """What a share left, zeros beyond the last; values within the kernel."""

    top: Any  # [M]
    total: Any  # [M]
    acc: Any  # [M, D]


@jit
def _load_left(shared, first, share, active, tile, shape: tl.constexpr):
    """Load what a share left in its cell, past the first-level cache with what was there before."""
    m, d = tl.arange(0, shape.padded_queries), tl.arange(0, shape.padded_dim)
    count: tl.constexpr = shape.query_len * shape.group
    there, cell = tl.full((shape.padded_queries,), share, tl.int32) < active, first + share
    stat = shared.stats + (cell * count + m) * 2
    sums = shared.sums + m[:, None] * shape.head_dim + d[None, :] + cell * count * shape.head_dim
    inside = tile.inside & there
    top = tl.load(stat, mask=inside, other=float("-inf"), cache_modifier=".cg")
    total = tl.load(stat + 1, mask=inside, other=0.0, cache_modifier=".cg")
    acc = tl.load(sums, mask=tile.mask & there[:, None], other=0.0, cache_modifier=".cg")
    return _Left(top, total, acc)


@jit
def _add(top, total, acc, left):
    higher = tl.maximum(top, left.top)
    mine, theirs = rescale(top, higher), rescale(left.top, higher)
    total = total * mine + left.total * theirs
    return higher, total, acc * mine[:, None] + left.acc * theirs[:, None]


@jit
def _add_shares(shared, cell, active, tile, shape: tl.constexpr):
    """Maxima, sums of weights and weighted values of all shares, in their order.

    Four are loaded at a time: one after the other, each would take a turn through the memory.
    """
    top = tl.full((shape.padded_queries,), float("-inf"), tl.float32)
    total = tl.full((shape.padded_queries,), 0.0, tl.float32)
    acc = tl.full((shape.padded_queries, shape.padded_dim), 0.0, tl.float32)
    for share in range(0, active, 4):
        one = _load_left(shared, cell, share, active, tile, shape)
        two = _load_left(shared, cell, share + 1, active, tile, shape)
        three = _load_left(shared, cell, share + 2, active, tile, shape)
        four = _load_left(shared, cell, share + 3, active, tile, shape)
        top, total, acc = _add(top, total, acc, one)
        top, total, acc = _add(top, total, acc, two)
        top, total, acc = _add(top, total, acc, three)
        top, total, acc = _add(top, total, acc, four)
    return top, total, acc
