# mypy: allow-untyped-defs, allow-incomplete-defs
"""The draws of speculative decoding in Triton: `sampling.draws` says what they are.

The target p comes as the race's kernels leave it (source, tile statistics, cuts) and is processed
on the way; the draft q is float32 logits, stored after temperature and masks. No softmax of
either is written anywhere: kernels work on log p_i = (x_i - max) / T - log mass, in float64.

This file has what the paths share, the draft's draw and the acceptance test;
`residual_kernels` has the recovered token.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling import rows
from sampling.batch import SamplingBatch
from sampling.logit_kernels import FLAGS, NUM_FLOATS, NUM_INTS, TILE, Source, load_raw, processed
from sampling.noise import (
    LEVEL_TILE,
    LEVEL_TOKEN,
    Purpose,
    exponential_range,
    philox_words,
    stream,
    uniform_from_words,
)
from sampling.race_kernels import Cuts
from sampling.rows import SamplingRows
from sampling.tile_kernels import TileStats, tile_pass
from sampling.triton_support import constexpr, jit, tl, triton

_SEED, _CHOICE = constexpr(rows.SEED), constexpr(rows.CHOICE)
_TEMPERATURE, _RANDOM = constexpr(rows.TEMPERATURE), constexpr(rows.RANDOM)
_DRAFT_TILE = constexpr(stream(Purpose.DRAFT, LEVEL_TILE))
_DRAFT_TOKEN = constexpr(stream(Purpose.DRAFT, LEVEL_TOKEN))
_ACCEPT = constexpr(stream(Purpose.ACCEPT))
_DEPTH_SHIFT = constexpr(stream(Purpose.TARGET, depth=1).bit_length() - 1)


class Draft(NamedTuple):
    """q of each logit row."""

    logits: Tensor  # float32 [n, vocab_size], after temperature and masks
    stride: int
    maxima: Tensor  # float32 [n, tiles]
    masses: Tensor  # float32 [n, tiles], at T = 1


class Target(NamedTuple):
    """p of each logit row beside its source."""

    maxima: Tensor  # float32 [n, tiles]
    masses: Tensor  # float32 [n, tiles], of what the cuts keep, at the row's T
    cut_values: Tensor  # float32 [n]
    cut_ids: Tensor  # int32 [n]

    @classmethod
    def of(cls, stats: TileStats, cuts: Cuts | None) -> Target:
        """From what the race's kernels left; None keeps everything."""
        if cuts is None:
            n, device = len(stats.maxima), stats.maxima.device
            cuts = Cuts(
                torch.full((n,), -torch.inf, device=device),
                torch.full((n,), 2**31 - 1, dtype=torch.int32, device=device),
            )
        return cls(stats.maxima, stats.masses, cuts.thresholds, cuts.last_ids)


@jit
def temperature_of(source, i):
    row = tl.load(source.rows + i).to(tl.int64)
    temperature = tl.load(source.floats + row * NUM_FLOATS + _TEMPERATURE)
    return tl.where(temperature == 0.0, 1.0, temperature)


@jit
def row_mass(stats, i, num_tiles, temperature, padded_tiles: tl.constexpr):
    """The highest logit M and log sum exp((x - M) / T), float64."""
    tile = tl.arange(0, padded_tiles)
    at = i * num_tiles + tile
    maxima = tl.load(stats.maxima + at, mask=tile < num_tiles, other=float("-inf"))
    masses = tl.load(stats.masses + at, mask=tile < num_tiles, other=0.0)
    top = tl.max(maxima, 0).to(tl.float64)
    gaps = (maxima - tl.where(top == float("-inf"), 0.0, top)) / temperature
    return top, tl.log(tl.sum(masses * tl.exp(gaps), 0))


@jit
def target_logits(source, target, i, token_ids, first_tile, last_tile, edited: tl.constexpr):
    """Processed logits, -inf beyond the cut, float64."""
    values = load_raw(source, i, token_ids, token_ids >= 0)
    if edited:
        values = processed(values, token_ids, source, i, first_tile, last_tile)
    cut, last = tl.load(target.cut_values + i), tl.load(target.cut_ids + i)
    kept = (values > cut) | ((values == cut) & (token_ids <= last))
    return tl.where(kept, values, float("-inf")).to(tl.float64)


@jit
def draft_logits(source, draft, i, token_ids):
    """float64."""
    inside = (token_ids >= 0) & (token_ids < source.vocab_size)
    at = draft.logits + i * draft.stride + token_ids
    return tl.load(at, mask=inside, other=float("-inf")).to(tl.float64)


@jit
def winner(noise, weights, index):
    """The lowest index among the smallest noise / weight."""
    keys = tl.where(weights > 0, noise / weights, float("inf"))
    return tl.min(tl.where(keys == tl.min(keys, 0), index, 2147483647), 0)


@jit
def noise_key(source, i):
    """Seed, choice and the position of the token that logit row i draws."""
    row = tl.load(source.rows + i).to(tl.int64)
    seed = tl.load(source.ints + row * NUM_INTS + _SEED)
    choice = tl.load(source.ints + row * NUM_INTS + _CHOICE)
    return seed, choice, tl.load(source.positions + i)


@jit
def is_random(source, i):
    row = tl.load(source.rows + i).to(tl.int64)
    return (tl.load(source.ints + row * NUM_INTS + FLAGS) & _RANDOM) != 0


@jit
def highest_token(source, target, i, num_tiles, padded_tiles: tl.constexpr, edited: tl.constexpr):
    """The lowest id among the highest logits."""
    tile = tl.arange(0, padded_tiles)
    at = target.maxima + i * num_tiles + tile
    maxima = tl.load(at, mask=tile < num_tiles, other=float("-inf"))
    top = tl.max(maxima, 0)
    first = tl.min(tl.where(maxima == top, tile, num_tiles - 1), 0)
    token_ids = first * TILE + tl.arange(0, TILE)
    values = target_logits(source, target, i, token_ids, first, first + 1, edited)
    return tl.min(tl.where(values == top, token_ids, source.vocab_size - 1), 0)


@jit
def _draft_kernel(source, draft, greedy, depth, token_ids, num_tiles, padded_tiles: tl.constexpr):
    """Race the tiles of q, then the winner's tokens; the highest logit where greedy."""
    i = tl.program_id(0).to(tl.int64)
    seed, choice, position = noise_key(source, i)
    tile = tl.arange(0, padded_tiles)
    at = i * num_tiles + tile
    maxima = tl.load(draft.maxima + at, mask=tile < num_tiles, other=float("-inf"))
    masses = tl.load(draft.masses + at, mask=tile < num_tiles, other=0.0)
    top = tl.max(maxima, 0).to(tl.float64)
    if tl.load(greedy + i):
        first = tl.min(tl.where(maxima == top, tile, num_tiles - 1), 0)
        ids = first * TILE + tl.arange(0, TILE)
        values = draft_logits(source, draft, i, ids)
        token = tl.min(tl.where(values == top, ids, source.vocab_size - 1), 0)
    else:
        shift = depth << _DEPTH_SHIFT
        weights = masses * tl.exp(maxima - top)
        noise = exponential_range(0, position, choice, _DRAFT_TILE + shift, seed, padded_tiles // 2)
        first = tl.minimum(winner(noise, weights, tile), num_tiles - 1)
        ids = first * TILE + tl.arange(0, TILE)
        weights = tl.exp(draft_logits(source, draft, i, ids) - top)
        noise = exponential_range(
            first * TILE, position, choice, _DRAFT_TOKEN + shift, seed, TILE // 2
        )
        token = tl.minimum(winner(noise, weights, ids), source.vocab_size - 1)
    tl.store(token_ids + i, token)


@jit
def _accept_kernel(
    source,
    target,
    draft,
    draft_ids,
    depths,
    accepted,
    num_tiles,
    padded_tiles: tl.constexpr,
    edited: tl.constexpr,
    has_draft: tl.constexpr,
):
    """u < p(x) / q(x), or whether x is the highest token of a greedy row."""
    i = tl.program_id(0).to(tl.int64)
    x = tl.load(draft_ids + i).to(tl.int32)
    if is_random(source, i):
        temperature = temperature_of(source, i)
        top, log_mass = row_mass(target, i, num_tiles, temperature, padded_tiles)
        ids = x + tl.zeros((2,), tl.int32)  # two lanes alike: a block must not be one token
        values = target_logits(source, target, i, ids, x // TILE, x // TILE + 1, edited)
        ratio = (values - top) / temperature - log_mass
        if has_draft:
            draft_top, draft_mass = row_mass(draft, i, num_tiles, 1.0, padded_tiles)
            ratio -= draft_logits(source, draft, i, ids) - draft_top - draft_mass
        seed, choice, position = noise_key(source, i)
        depth = tl.load(depths + i)
        stream_id = _ACCEPT + (depth << _DEPTH_SHIFT)
        w0, w1, _, _ = philox_words(tl.arange(0, 2), position - depth, choice, stream_id, seed)
        u = uniform_from_words(w0, w1)  # of the indices 0 and 2
        kept = (u < tl.exp(ratio)) & (tl.arange(0, 2) == 0)
        tl.store(accepted + i, tl.max(kept.to(tl.int32), 0) != 0)
    else:
        highest = highest_token(source, target, i, num_tiles, padded_tiles, edited)
        tl.store(accepted + i, x == highest)


def draft_draw(
    logits: Tensor, batch: SamplingBatch, rows: SamplingRows, greedy: Tensor, depth: int
) -> tuple[Tensor, Draft]:
    """Draft tokens, int32 [n], and the q they were drawn from.

    Args:
        logits: float32 [n, vocab_size], after temperature and masks; `Draft` keeps them.
        batch: whose seeds and choices; positions are those of the step's first draft.
        greedy: bool [n], rows that take the highest logit.
        depth: how many drafts of the step precede this one.
    """
    source = Source.of(logits, batch, rows)
    stats = tile_pass(source, edited=False, peaked=False, reported=True)  # raw is at T = 1
    draft = Draft(logits, logits.stride(0), stats.raw_maxima, stats.raw_masses)
    n, num_tiles = stats.maxima.shape
    token_ids = torch.empty(n, dtype=torch.int32, device=logits.device)
    _draft_kernel[(n,)](
        source,
        draft,
        greedy,
        depth,
        token_ids,
        num_tiles,
        padded_tiles=padded(num_tiles),
        enable_fp_fusion=False,
    )
    return token_ids, draft


def accept(
    source: Source,
    target: Target,
    draft: Draft | None,
    draft_ids: Tensor,
    depths: Tensor,
    *,
    edited: bool,
) -> Tensor:
    """Whether each draft is kept, bool [n].

    Args:
        source: of the target's logits; positions are the drafted tokens' own.
        target: what the race's kernels left of it.
        draft: q; None where the drafts are one-hot.
        draft_ids: int32 or int64 [n].
        depths: int32 [n], how many drafts of the step precede each.
        edited: whether any row has masks, bias or penalties.
    """
    n, num_tiles = target.maxima.shape
    accepted = torch.empty(n, dtype=torch.bool, device=draft_ids.device)
    _accept_kernel[(n,)](
        source,
        target,
        draft or target,
        draft_ids,
        depths,
        accepted,
        num_tiles,
        padded_tiles=padded(num_tiles),
        edited=edited,
        has_draft=draft is not None,
        enable_fp_fusion=False,
    )
    return accepted


def padded(num_tiles: int) -> int:
    """Lanes of a kernel that holds one number a tile."""
    lanes: int = max(2, triton.next_power_of_2(num_tiles))
    return lanes
