# mypy: allow-untyped-defs, allow-incomplete-defs
"""A row's top list in Triton: found in the chunks of chosen tiles, or merged of all ranks' lists.

`sampling.kernels.logprobs` chooses the tiles, and launches these.
"""

from __future__ import annotations

from sampling.device.triton_support import constexpr, jit, tl
from sampling.kernels.logits import TILE, is_held
from sampling.kernels.order import key_id, order, rank_key, value_of
from sampling.kernels.report import flags_of, is_wanted, reported_values, scaled
from sampling.noise import TILE as TILE_WIDTH

CHUNK, PIECE = 64, 8

CHUNK_WIDTH, NUM_CHUNKS = constexpr(CHUNK), constexpr(TILE_WIDTH // CHUNK)
_PIECE, _PIECES = constexpr(PIECE), constexpr(CHUNK // PIECE)
NOTHING = constexpr(-(2**63))


@jit
def _first(values, ids, some, k, size: tl.constexpr, padded_k: tl.constexpr):
    """Select the first k of `size` values of different ids: keys, best first, int64 [padded_k]."""
    keys = tl.where(some, rank_key(order(values), ids), NOTHING)
    return _first_keys(tl.reshape(keys, (size,)), k, padded_k)


@jit
def _first_keys(keys, k, padded_k: tl.constexpr):
    """The k highest of different keys, best first, int64 [padded_k]."""
    lanes = tl.arange(0, padded_k)
    found = tl.full((padded_k,), NOTHING, tl.int64)
    for j in range(0, k):
        best = tl.max(keys, 0)
        found = tl.where(lanes == j, best, found)
        keys = tl.where(keys == best, NOTHING, keys)
    return found


@jit(do_not_specialize=["k", "filtered"])
def top_list_kernel(
    source,
    work,
    k,
    filtered,
    padded_k: tl.constexpr,
    padded_tiles: tl.constexpr,
    edited: tl.constexpr,
):
    """Find a row's top list in the chunks of the chosen tiles."""
    i = tl.program_id(0).to(tl.int64)
    flags = flags_of(source, i)
    if is_wanted(work, i, flags):
        num_tiles, tile = tl.cdiv(source.vocab_size, TILE), tl.arange(0, padded_tiles)
        slots = tl.load(work.slots + i * num_tiles + tile, mask=tile < num_tiles, other=k)
        lane = tl.arange(0, padded_k)[:, None]
        tiles = tl.max(tl.where((slots[None, :] == lane) & (lane < k), tile[None, :], -1), 1)
        chunk = tl.arange(0, NUM_CHUNKS)[None, :]
        some = (tiles[:, None] >= 0) & (chunk >= 0) & is_held(source, tiles)[:, None]
        at = work.chunk_maxima + (i * k + lane) * NUM_CHUNKS + chunk
        maxima = tl.load(at, mask=some, other=float("-inf"))
        chunk = tiles[:, None] * NUM_CHUNKS + chunk
        chunks = _first(maxima, chunk, some, k, padded_k * NUM_CHUNKS, padded_k)[:, None]

        # A chunk's pieces likewise, then their tokens: two short searches beat a long one.
        ids = key_id(chunks) * CHUNK_WIDTH + tl.arange(0, CHUNK_WIDTH)[None, :]
        some = (chunks != NOTHING) & (ids < source.vocab_size)
        values = reported_values(source, i, ids, some, flags, 0, num_tiles, edited)
        maxima = tl.max(tl.reshape(values, (padded_k, _PIECES, _PIECE)), 2)
        piece = key_id(chunks) * _PIECES + tl.arange(0, _PIECES)[None, :]
        some = (chunks != NOTHING) & (piece * _PIECE < source.vocab_size)
        pieces = _first(maxima, piece, some, k, padded_k * _PIECES, padded_k)[:, None]

        ids = key_id(pieces) * _PIECE + tl.arange(0, _PIECE)[None, :]
        some = (pieces != NOTHING) & (ids < source.vocab_size)
        values = reported_values(source, i, ids, some, flags, 0, num_tiles, edited)
        top = _first(values, ids, some, k, padded_k * _PIECE, padded_k)
        if work.keys is None:
            _store_top(source, work, i, top, flags, k, filtered, padded_k, padded_tiles)
        else:
            lane = tl.arange(0, padded_k)
            tl.store(work.keys + i * k + lane, top, mask=lane < k)


@jit
def _store_top(
    source,
    work,
    i,
    top,
    flags,
    k,
    filtered,
    padded_k: tl.constexpr,
    padded_tiles: tl.constexpr,
):
    """Store a row's top list, given the keys of its tokens."""
    ids, values = key_id(top), value_of((top >> 32).to(tl.int32))
    values = scaled(values, ids, source, work, i, flags, filtered, padded_tiles)
    lane = tl.arange(0, padded_k)
    tl.store(work.out.top_ids + i * k + lane, ids, mask=lane < k)
    tl.store(work.out.top_logprobs + i * k + lane, values, mask=lane < k)


@jit(do_not_specialize=["num_rows", "k", "filtered"])
def merge_lists_kernel(
    source,
    work,
    ranks,
    keys,
    num_rows,
    k,
    filtered,
    num_ranks: tl.constexpr,
    padded_ranks: tl.constexpr,
    padded_k: tl.constexpr,
    padded_tiles: tl.constexpr,
):
    """Make a row's rank and top list from those of all ranks.

    Args:
        ranks: int32 [num_ranks, n], one more than each counted before the chosen token.
        keys: int64 [num_ranks, n, k], each one's top list.
    """
    i = tl.program_id(0).to(tl.int64)
    flags = flags_of(source, i)
    sender = tl.arange(0, padded_ranks)
    before = tl.load(ranks + sender * num_rows + i, mask=sender < num_ranks, other=1) - 1
    tl.store(work.out.ranks + i, 1 + tl.sum(before, 0))
    if is_wanted(work, i, flags):
        lane = tl.arange(0, padded_k)[None, :]
        at = keys + (sender[:, None].to(tl.int64) * num_rows + i) * k + lane
        some = (sender[:, None] < num_ranks) & (lane < k)
        gathered = tl.reshape(tl.load(at, mask=some, other=NOTHING), (padded_ranks * padded_k,))
        top = _first_keys(gathered, k, padded_k)
        _store_top(source, work, i, top, flags, k, filtered, padded_k, padded_tiles)
