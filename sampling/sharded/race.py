# mypy: allow-untyped-defs, allow-incomplete-defs
"""The race among ranks in Triton: each draws from its own tiles, and the least key of all wins.

A rank's candidate for a row is the winner of its own tiles. With it go the noise, the maximum and
the mass of the tile that it lies in, so that all ranks compute all candidates' keys alike, from
the highest logit of the whole row, as `kernels.race` does on one rank. Within a rank the key is
taken from the rank's own highest logit: that is a common factor of its keys, so only keys within a
rounding of each other could change places, with a probability below 2^-44 a draw (`noise`).
Drafts (`speculative.triton_drafting`) make candidates of their own and are decided here too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling import noise
from sampling.batch import NOTHING_ALLOWED, UNUSABLE_LOGITS, SamplerOutput, SamplingBatch
from sampling.device.triton_support import constexpr, jit, padded_lanes, tl
from sampling.kernels.logits import TILE, Source
from sampling.kernels.penalties import count_tokens
from sampling.kernels.race import RowTiles, draw_token
from sampling.kernels.row_params import (
    RANDOM,
    load_flags,
    load_temperature,
    noise_key,
    sampling_row,
)
from sampling.kernels.tile_pass import TileStats, tile_pass_for
from sampling.noise import LEVEL_TILE, Purpose, exponential_range, stream
from sampling.race import Cut
from sampling.rows import SamplingRows

CANDIDATE_WORDS = 8
"""Of 4 bytes each: what a rank sends of a row."""

_UNUSABLE, _NOTHING_ALLOWED = constexpr(UNUSABLE_LOGITS), constexpr(NOTHING_ALLOWED)
_TILE_STREAM = constexpr(stream(Purpose.TARGET, LEVEL_TILE))
_WORDS = constexpr(CANDIDATE_WORDS)
# Places in a candidate, after the two words of its tile's noise.
_MAXIMUM, _MASS, _TOP = constexpr(2), constexpr(3), constexpr(4)
_TOKEN, _STATE = constexpr(5), constexpr(6)
BROKEN, _MASKED_OUT = constexpr(1), constexpr(2)


class Candidates(NamedTuple):
    """Candidates [n, CANDIDATE_WORDS] as the three types of their words."""

    doubles: Tensor
    floats: Tensor
    ints: Tensor

    @classmethod
    def of(cls, words: Tensor) -> Candidates:
        """Views of int32 words."""
        return cls(words.view(torch.float64), words.view(torch.float32), words)


@jit
def _load_own_tiles(source, stats, i, num_tiles, padded_tiles: tl.constexpr):
    """Load the `RowTiles` of logit row i, in lanes of the whole vocabulary's tiles.

    `bad` is what this rank's tiles show: bits of `BROKEN` and `_MASKED_OUT`.
    """
    lanes = tl.arange(0, padded_tiles) - source.first_tile
    inside = (lanes >= 0) & (lanes < num_tiles)
    at = i * num_tiles + lanes
    maxima = tl.load(stats.maxima + at, mask=inside, other=float("-inf"))
    masses = tl.load(stats.masses + at, mask=inside, other=0.0)
    broken = (masses != masses) | (maxima == float("inf"))
    top = tl.max(tl.where(broken, float("-inf"), maxima), 0)
    state = tl.where(tl.max(broken.to(tl.int32), 0) != 0, BROKEN, 0)
    state = state | tl.where(tl.min(masses, 0) < 0.0, _MASKED_OUT, 0)
    return RowTiles(maxima, masses, top, state)


@jit
def _candidate_kernel(
    source, stats, candidates, num_tiles, padded_tiles: tl.constexpr, edited: tl.constexpr
):
    """Draw a row's token from this rank's tiles, and store it as a candidate."""
    i = tl.program_id(0).to(tl.int64)
    random = (load_flags(source, sampling_row(source, i)) & RANDOM) != 0
    tiles = _load_own_tiles(source, stats, i, num_tiles, padded_tiles)
    no_cuts = Cut(stats.maxima, stats.maxima)
    all_tiles = tl.cdiv(source.vocab_size, TILE)
    token = draw_token(source, no_cuts, i, tiles, random, all_tiles, padded_tiles, edited, False)
    lanes = tl.arange(0, padded_tiles)
    won = lanes == token // TILE
    seed, choice, position = noise_key(source, i)
    times = exponential_range(0, position, choice, _TILE_STREAM, seed, padded_tiles // 2)
    store_candidate(candidates, i, times, tiles, won, token)


@jit
def store_candidate(candidates, i, times, tiles, won, token):
    """Store a row's candidate.

    Args:
        times: noise of all tiles, float64. tiles: the `RowTiles` of those held, in the same lanes.
        won: which of the lanes is the candidate's tile.
    """
    tl.store(candidates.doubles + i * (_WORDS // 2), tl.sum(tl.where(won, times, 0.0), 0))
    at = candidates.floats + i * _WORDS
    tl.store(at + _MAXIMUM, tl.max(tl.where(won, tiles.maxima, float("-inf")), 0))
    tl.store(at + _MASS, tl.sum(tl.where(won, tiles.masses, 0.0), 0))
    tl.store(at + _TOP, tiles.top)
    tl.store(candidates.ints + i * _WORDS + _TOKEN, token)
    tl.store(candidates.ints + i * _WORDS + _STATE, tiles.bad)


@jit(do_not_specialize=["num_rows"])
def _decide_kernel(
    source,
    gathered,
    token_ids,
    bad,
    num_rows,
    num_ranks: tl.constexpr,
    raced: tl.constexpr,
    scaled: tl.constexpr,
):
    """Find a row's token among the candidates of all ranks, gathered [ranks, n, words]."""
    i = tl.program_id(0).to(tl.int64)
    random = tl.full((), False, tl.int1)
    if raced:
        random = (load_flags(source, sampling_row(source, i)) & RANDOM) != 0
    rate = tl.full((), 1.0, tl.float64)
    if not scaled:
        rate = 1.0 / load_temperature(source, i)
        rate = tl.minimum(rate, 1.7976931348623157e308)  # finite, for gaps of zero
    top = tl.full((), float("-inf"), tl.float32)
    state = tl.full((), 0, tl.int32)
    for rank in tl.static_range(num_ranks):
        at = (rank * num_rows + i) * _WORDS
        top = tl.maximum(top, tl.load(gathered.floats + at + _TOP))
        state = state | tl.load(gathered.ints + at + _STATE)
    token = tl.full((), 0, tl.int32)
    best = tl.full((), float("inf"), tl.float64)
    highest = tl.full((), float("-inf"), tl.float32)
    for rank in tl.static_range(num_ranks):  # ranks ascend by id: the first of equals wins
        at = (rank * num_rows + i) * _WORDS
        maximum, mass = (
            tl.load(gathered.floats + at + _MAXIMUM),
            tl.load(gathered.floats + at + _MASS),
        )
        key = tl.load(gathered.doubles + at // 2)
        key = key * tl.exp((top - maximum).to(tl.float64) * rate)
        key = tl.where(mass > 0, key / mass, float("inf"))
        wins = tl.where(random, key < best, maximum > highest)
        token = tl.where(wins, tl.load(gathered.ints + at + _TOKEN), token)
        best = tl.where(wins, key, best)
        highest = tl.where(wins, maximum, highest)
    reason = tl.where((state & _MASKED_OUT) != 0, _NOTHING_ALLOWED, _UNUSABLE)
    reason = tl.where(top > float("-inf"), 0, reason)
    reason = tl.where((state & BROKEN) != 0, _UNUSABLE, reason)
    tl.store(token_ids + i, tl.where(reason != 0, 0, token))
    tl.store(bad + i, reason)


def candidates(source: Source, stats: TileStats, *, edited: bool, num_warps: int = 8) -> Tensor:
    """Draw each row's token from the tiles of one rank.

    Args:
        source: of the rank's shard; no row is filtered.
        stats: as `tile_pass` gave them.
        edited: whether any row has masks, bias or penalties.
        num_warps: of no consequence for the result.

    Returns:
        int32 [n, CANDIDATE_WORDS], for `decide`.
    """
    num_rows, num_tiles = stats.maxima.shape
    words = torch.empty((num_rows, CANDIDATE_WORDS), dtype=torch.int32, device=stats.maxima.device)
    _candidate_kernel[(num_rows,)](
        source,
        stats,
        Candidates.of(words),
        num_tiles,
        padded_tiles=padded_lanes(-(-source.vocab_size // noise.TILE)),
        edited=edited,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )
    return words


def decide(
    source: Source, gathered: Tensor, *, raced: bool = True, scaled: bool = False
) -> tuple[Tensor, Tensor]:
    """The token of each row, int32 [n], 0 where bad, and uint8 [n] as in `SamplerOutput`.

    Args:
        gathered: int32 [ranks, n, CANDIDATE_WORDS], every rank's `candidates`.
        raced: whether random rows are; else all rows take their highest token.
        scaled: whether candidates are of logits that a temperature has divided already.
    """
    num_ranks, num_rows, _ = gathered.shape
    token_ids = torch.empty(num_rows, dtype=torch.int32, device=gathered.device)
    bad = torch.empty(num_rows, dtype=torch.uint8, device=gathered.device)
    _decide_kernel[(num_rows,)](
        source,
        Candidates.of(gathered),
        token_ids,
        bad,
        num_rows,
        num_ranks=num_ranks,
        raced=raced,
        scaled=scaled,
        num_warps=1,
        enable_fp_fusion=False,
    )
    return token_ids, bad


def draw_sharded(logits: Tensor, batch: SamplingBatch, rows: SamplingRows) -> SamplerOutput:
    """Draw without filters and logprobs: each rank from its own tiles, and all decide alike."""
    source, edited = Source.of(logits, batch, rows, rows.shard), batch.needs.edited
    stats = tile_pass_for(source, batch.needs)
    own = candidates(source, stats, edited=edited)
    token_ids, bad = decide(source, rows.shard.exchange.all_gather(own))
    if batch.needs.penalized:
        count_tokens(source, token_ids, bad)
    return SamplerOutput(token_ids, bad, None)
