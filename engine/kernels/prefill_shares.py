# mypy: allow-untyped-defs, allow-incomplete-defs
"""Shares of a tile's keys: how many programs divide them, and what these leave for the last.

A prompt whose beginning is cached has few tiles, each of which goes over thousands of keys: fewer
programs than a GPU has processors, for a long time. So each tile's keys are divided among several.
The last share to arrive adds up what the others left, in the order of the shares: the sum does not
depend on who came last. Letters in comments as in `prefill_attention`; S is `MAX_SHARES`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from engine.kernels.decode.softmax import add_sinks
from engine.kernels.decode.split_keys import divide, rescale
from engine.kernels.pages import first_key, times_scale
from sampling.device.triton_support import constexpr, jit, tl

MAX_SHARES = 16
"""Most programs that divide a tile's keys; the last of them reads what all have left."""
FULL = 2
"""Programs a processor of the GPU that keys are divided among: of the widest heads whose sums fit
into registers, as many run at once."""
MOST = 4
"""Likewise in a graph, about half of whose tiles have no tokens."""
LONG = 512
"""Fewest keys of a share, the last one aside."""

_MAX_SHARES = constexpr(MAX_SHARES)
_WIDTH = constexpr(64)  # dimensions of four shares' sums that a thread's registers hold at once


class PrefillRoom(NamedTuple):
    """The pointers of `PrefillScratch` and the fewest keys of a share; one kernel argument."""

    sums: torch.Tensor
    stats: torch.Tensor
    arrivals: torch.Tensor
    least: int


class Divided(NamedTuple):
    """How a launch divides its tiles' keys: into up to `most` shares each."""

    room: PrefillRoom
    most: int


class PrefillScratch:
    """Owns what the shares of a tile's keys leave for the last of them, for all layers.

    Args:
        num_queries: most queries of a tile and key head.
        num_sums: most queries times head_dim.

    Attributes:
        sums: float32, room for the shares' weighted values.
        stats: float32, room for their maxima and sums of weights.
        arrivals: int32, shares that have come, 0 between launches.
    """

    def __init__(self, num_queries: int, num_sums: int, device: torch.device) -> None:
        self._num_processors = 2
        if device.type == "cuda":
            properties = torch.cuda.get_device_properties(device)
            self._num_processors = properties.multi_processor_count
        num_cells = MOST * self._num_processors
        self.sums = torch.empty(num_cells * num_sums, dtype=torch.float32, device=device)
        self.stats = torch.empty(num_cells * num_queries * 2, dtype=torch.float32, device=device)
        self.arrivals = torch.zeros(num_cells, dtype=torch.int32, device=device)

    def divided(self, num_programs: int, num_keys: int, *, some_empty: bool) -> Divided | None:
        """How a launch divides the keys of its tiles, if it does.

        Args:
            num_programs: its tiles times key heads.
            num_keys: the most that a tile sees.
            some_empty: whether there are tiles without tokens, as in a graph.
        """
        full = (MOST if some_empty else FULL) * self._num_processors
        most = num_shares(num_programs, num_keys, full)
        room = PrefillRoom(self.sums, self.stats, self.arrivals, LONG)
        return None if most == 1 else Divided(room, most)


def num_shares(num_programs: int, num_keys: int, full: int) -> int:
    """How many programs at most divide a tile's keys: as many as `full` programs are in all.

    Args:
        num_programs: where one goes over all keys of a tile.
        num_keys: the most that a tile sees.
    """
    return max(1, min(MAX_SHARES, full // max(1, num_programs), num_keys // LONG))


class KeyShare(NamedTuple):
    """A program's share of its tile's keys; values within the kernel."""

    start: Any
    end: Any
    active: Any  # shares of the tile, at least one


@jit
def share_of_tile(tile, least, rules, shape: tl.constexpr):
    """The share of the program; one of no keys has a number beyond the active ones."""
    first = first_key(tile, rules, shape)
    per_share, active = divide(tile.end - first, least, 1, tl.num_programs(1), shape)
    start = first + tl.program_id(1) * per_share
    return KeyShare(start, tl.minimum(start + per_share, tile.end), active)


@jit
def add_up(room, out, queries, head, active, scales, sinks, shape: tl.constexpr):
    """Add up what the shares of a tile left, in their order, and store what its queries attend to.

    Some dimensions at a time: a wide head's sums of one share take half of a thread's registers.
    """
    m, s = tl.arange(0, shape.padded_queries), tl.arange(0, _MAX_SHARES)
    count: tl.constexpr = shape.query_len * shape.group
    width: tl.constexpr = min(_WIDTH, shape.padded_dim)
    first = tl.program_id(0) * tl.num_programs(1) * count + m  # of the queries in the first share
    stats = room.stats + (first[:, None] + s[None, :] * count) * 2
    there = queries.inside[:, None] & (s < active)[None, :]
    tops = tl.load(stats, mask=there, other=float("-inf"), cache_modifier=".cg")
    totals = tl.load(stats + 1, mask=there, other=0.0, cache_modifier=".cg")
    top = tl.max(tops, 1)
    factors = rescale(tops, top[:, None])
    total = tl.sum(totals * factors, 1)
    for at in range(0, shape.padded_dim, width):
        d = at + tl.arange(0, width)
        acc = tl.full((shape.padded_queries, width), 0.0, tl.float32)
        for share in range(0, active, 4):  # one at a time, each would take a turn through memory
            one = _weighted(room, first, share, active, queries, factors, d, shape)
            two = _weighted(room, first, share + 1, active, queries, factors, d, shape)
            three = _weighted(room, first, share + 2, active, queries, factors, d, shape)
            four = _weighted(room, first, share + 3, active, queries, factors, d, shape)
            acc = acc + one + two + three + four
        sum_all = total
        if sinks is not None:
            sum_all, acc = add_sinks(queries, top, total, acc, sinks)
        sum_all = tl.where(sum_all == 0.0, 1.0, sum_all)  # padded queries
        acc = times_scale(acc, scales, shape.kv_heads + head)
        outs = out + queries.starts[:, None] + d[None, :]
        mask = queries.inside[:, None] & (d < shape.head_dim)[None, :]
        tl.store(outs, (acc / sum_all[:, None]).to(out.dtype.element_ty), mask=mask)


@jit
def _weighted(room, first, share, active, queries, factors, d, shape: tl.constexpr):
    """A share's weighted values [M, d], times its factor of `factors` [M, S]; 0 beyond the last."""
    count: tl.constexpr = shape.query_len * shape.group
    inside = queries.inside & (tl.full((shape.padded_queries,), share, tl.int32) < active)
    mask = inside[:, None] & (d < shape.head_dim)[None, :]
    sums = room.sums + (first + share * count)[:, None] * shape.head_dim + d[None, :]
    loaded = tl.load(sums, mask=mask, other=0.0, cache_modifier=".cg")
    # Loaded once more, a factor would be waited for before the next share's sums are asked for.
    own = (tl.arange(0, _MAX_SHARES) == share)[None, :]
    return loaded * tl.sum(tl.where(own, factors, 0.0), 1)[:, None]
