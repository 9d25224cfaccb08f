# mypy: allow-untyped-defs, allow-incomplete-defs
"""Device functions for the shortlist's candidates: gather them, sort them, find the last one kept.

They are gathered from blocks of `PEAK` ids, in id order, and only they are sorted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sampling.device.triton_support import constexpr, jit, tl
from sampling.kernels.logits import TILE, load_raw, processed
from sampling.kernels.order import key_id, order, rank_key, value_of
from sampling.kernels.tile_pass import PEAK

MAX_BLOCKS = 256  # blocks that may reach the threshold; more can only by ties
MAX_CANDIDATES = 256

_BLOCK = constexpr(PEAK)
_BLOCKS, _CANDIDATES = constexpr(MAX_BLOCKS), constexpr(MAX_CANDIDATES)
_GROUP = constexpr(8)  # blocks read at once
LOWEST_KEY, HIGHEST_KEY = constexpr(-(2**63)), constexpr(2**63 - 1)


@jit
def _block_ids(source, scratch, i, start, num_blocks):
    """Token ids [_GROUP, PEAK] of some selected blocks; the vocabulary's size beyond them."""
    slot = tl.arange(0, _GROUP) + start
    mask = slot < num_blocks
    block = tl.load(scratch.blocks + i * _BLOCKS + slot, mask=mask, other=0)
    token_ids = block[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    return tl.where(mask[:, None], token_ids, source.vocab_size)


@jit
def collect(source, scratch, i, threshold, floor, num_blocks, num_tiles, edited: tl.constexpr):
    """Write the candidates of the selected blocks in id order and return their number."""
    count = 0
    next_ids = _block_ids(source, scratch, i, 0, num_blocks)
    next_values = load_raw(source, i, next_ids, next_ids >= 0)
    for start in range(0, num_blocks, _GROUP):
        token_ids, values = next_ids, next_values
        next_ids = _block_ids(source, scratch, i, start + _GROUP, num_blocks)
        next_values = load_raw(source, i, next_ids, next_ids >= 0)  # flies meanwhile
        if edited:
            values = processed(values, token_ids, source, i, 0, num_tiles)
        kept = (values >= threshold) & (values > float("-inf"))
        kept = (kept & (values.to(tl.float64) >= floor)).to(tl.int32)
        in_block = tl.sum(kept, 1)
        begins = tl.cumsum(in_block, 0) - in_block + count
        slot = begins[:, None] + tl.cumsum(kept, 1) - 1
        inside = (kept != 0) & (slot < _CANDIDATES)
        keys = rank_key(order(values), token_ids)
        tl.store(scratch.keys + i * _CANDIDATES + slot, keys, mask=inside)
        count += tl.sum(in_block, 0)
    return count


class _Candidates(NamedTuple):
    """The candidates in id order; values within the kernels, vectors of MAX_CANDIDATES."""

    some: Any  # whether there is one in this place
    token_ids: Any
    next_ids: Any
    keys: Any  # `rank_key`, the lowest int64 where there is none


@jit
def load_candidates(scratch, i, count):
    """The `count` candidates that `collect` wrote for logit row i."""
    slot = tl.arange(0, _CANDIDATES)
    at = scratch.keys + i * _CANDIDATES + slot
    keys = tl.load(at, mask=slot < count, other=LOWEST_KEY)
    next_keys = tl.load(at + 1, mask=slot + 1 < count, other=LOWEST_KEY)
    return candidates_of(keys, next_keys)


@jit
def candidates_of(keys, next_keys):
    """The `_Candidates` of these keys, and of those in the places after them."""
    return _Candidates(keys != LOWEST_KEY, key_id(keys), key_id(next_keys), keys)


@jit
def last_kept(keys, count, top, filters, all_mass):
    """The lowest of the candidates' keys that the filters keep.

    The highest int64 if the candidates do not reach the top-p of `all_mass`; a negative
    `all_mass` says that they are all there is.
    """
    slot = tl.arange(0, _CANDIDATES)
    ordered = tl.sort(keys, descending=True)
    kept = slot < tl.minimum(count, filters.top_k)
    gaps = (value_of((ordered >> 32).to(tl.int32)) - top).to(tl.float64)
    weights = tl.where(kept, tl.exp(gaps / filters.temperature), 0.0)
    mass = tl.cumsum(weights, 0)
    found = tl.max(mass, 0)
    target = filters.top_p * tl.where(all_mass < 0.0, found, all_mass)
    kept = kept & (mass - weights < tl.where(filters.top_p >= 1.0, float("inf"), target))
    cut = tl.min(tl.where(kept, ordered, HIGHEST_KEY), 0)
    return tl.where((all_mass >= 0.0) & (found < target), HIGHEST_KEY, cut)


@jit
def _same_tile_sum(first_sum, first_tile, second_sum, second_tile):
    """Combine running sums that start anew at every tile, for an associative scan."""
    return tl.where(first_tile == second_tile, first_sum + second_sum, second_sum), second_tile


@jit
def store_masses(stats, i, found, count, cut, temperature, num_tiles):
    """Store each tile's mass of candidates down to the cut; the tiles must hold zeros."""
    slot = tl.arange(0, _CANDIDATES)
    tile = tl.where(found.some, found.token_ids // TILE, num_tiles - 1)
    next_tile = tl.where(slot + 1 < count, found.next_ids // TILE, -1)
    next_tile = tl.where(found.some, next_tile, tile)
    maxima = tl.load(stats.maxima + i * num_tiles + tile)
    values = value_of((found.keys >> 32).to(tl.int32))
    weights = tl.exp((values - maxima).to(tl.float64) / temperature)
    weights = tl.where(found.keys >= cut, weights, 0.0)
    sums, _tiles = tl.associative_scan((weights, tile), 0, _same_tile_sum)
    at = stats.masses + i * num_tiles + tile
    tl.store(at, sums.to(tl.float32), mask=tile != next_tile)
