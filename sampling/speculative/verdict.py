# mypy: allow-untyped-defs, allow-incomplete-defs
"""The verdict of verification on each draft, in Triton: a program decides one row and depth.

The target p comes as the race's kernels leave it (source, tile statistics, cuts) and is processed
on the way; the draft q is float32 logits, stored after temperature and masks. `speculative.ratio`
reads the two, `speculative.residual` draws the token after the last accepted draft.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sampling.batch import NOTHING_ALLOWED, UNUSABLE_LOGITS, Drafts
from sampling.device.triton_support import constexpr, jit, padded_lanes, tl
from sampling.kernels.logits import TILE, Source, is_held
from sampling.kernels.race import (
    draw_token,
    highest_token,
    load_tiles,
    store_kept,
    store_offset,
)
from sampling.kernels.row_params import is_random, noise_key
from sampling.kernels.tile_pass import LOG2_E, TileStats, block_mass
from sampling.noise import Purpose, philox_words, stream, uniform_from_words
from sampling.race import Cut
from sampling.speculative.ratio import draft_log_ratio, draft_slot
from sampling.vocab_shard import VocabShard


class Verdict(IntEnum):
    """The decision on one draft, or on a depth without a draft."""

    ACCEPT = 0  # the draft is kept
    RECOVER = 1  # refused; another token is drawn in its place from the residual
    DRAW = 2  # the target draws: there is no draft, or a refused one that says nothing of p
    STOP = 3  # after the row's drafts or its room
    UNUSABLE = STOP + UNUSABLE_LOGITS  # the logits are bad, with this code
    EMPTY = STOP + NOTHING_ALLOWED
    ELSEWHERE = -1  # another rank holds what decides


ACCEPT, RECOVER, DRAW, STOP = (constexpr(int(verdict)) for verdict in list(Verdict)[:4])
_ELSEWHERE = constexpr(int(Verdict.ELSEWHERE))
NEVER = constexpr(float("-inf"))
"""log of a ratio that accepts nothing."""

_ACCEPT_STREAM = constexpr(stream(Purpose.ACCEPT))
_DEPTH_SHIFT = constexpr(stream(Purpose.TARGET, depth=1).bit_length() - 1)


class Verdicts(NamedTuple):
    """The drafts and the verdicts on them, for R rows with n logit rows."""

    starts: Tensor  # int64 [R]; this and the next three as in `Drafts`
    num_drafts: Tensor
    token_ids: Tensor
    room: Tensor
    k: int
    depths: int  # of the draft logits, k or more; 0 without them
    verdicts: Tensor  # int32 [R, 1 + k], `Verdict`
    # float64 [R, k, 4]: of p and q the highest logit and the log of the mass relative to it,
    # where a token must be recovered.
    scalars: Tensor
    offsets: Tensor  # float64 [n], see `race.store_offset`
    kept: Tensor  # float32 [n], see `race.store_kept`
    ratios: Tensor  # float64 [R, k], log p(x) / q(x) of random rows' drafts, for `blocks`


class DraftTiles(NamedTuple):
    """q's logits, and the tile statistics of those that a draft is tested against."""

    logits: Tensor  # float32 [slots, k, width], those held
    maxima: Tensor  # float32 [R * k, tiles]
    masses: Tensor  # float32 [R * k, tiles], at T = 1


class _Draft(NamedTuple):
    """A draft under test; values within the kernels."""

    token_id: Any
    row: Any  # of R
    depth: Any
    i: Any  # logit row


@jit
def _draft_at(source, work, r, depth):
    """Load the draft of a row and depth; return its id and whether there is one."""
    some = (depth < tl.load(work.num_drafts + r)) & (depth < tl.load(work.room + r))
    x = tl.load(work.token_ids + r * work.k + depth, mask=some, other=-1).to(tl.int32)
    return x, (x >= 0) & (x < source.vocab_size)


@jit
def _draft_tiles_kernel(source, work, draft, num_tiles):
    """Measure the tiles of q that are held where a draft will be tested against it."""
    tile, at = tl.program_id(1), tl.program_id(0).to(tl.int64)
    r, depth = at // work.k, at % work.k
    i = tl.load(work.starts + r).to(tl.int64)
    _x, given = _draft_at(source, work, r, depth)
    if given & is_random(source, i):
        columns, width = tile * TILE + tl.arange(0, TILE), source.vocab_size
        if source.first_tile is not None:
            width = source.end_id - source.first_tile * TILE
        logits = draft.logits + draft_slot(source, i, work.depths, depth) * width
        values = tl.load(logits + columns, mask=columns < width, other=float("-inf"))[None, :]
        maxima = tl.max(values, 1)
        masses = block_mass(values, maxima, LOG2_E)
        lane = tl.arange(0, 1)
        tl.store(draft.maxima + at * num_tiles + tile + lane, maxima)
        tl.store(draft.masses + at * num_tiles + tile + lane, masses)


@jit
def _verdict_kernel(
    source,
    stats,
    cuts,
    draft,
    rates,
    work,
    num_tiles,
    padded_tiles: tl.constexpr,
    synthetic: tl.constexpr,
    coupled: tl.constexpr,
    has_draft_logits: tl.constexpr,
    edited: tl.constexpr,
    filtered: tl.constexpr,
    reported: tl.constexpr,
    kept: tl.constexpr,
    together: tl.constexpr,
):
    depth, r = tl.program_id(1), tl.program_id(0).to(tl.int64)
    verdict = tl.full((), STOP, tl.int32)
    if (depth <= tl.load(work.num_drafts + r)) & (depth < tl.load(work.room + r)):
        i = tl.load(work.starts + r).to(tl.int64) + depth
        tiles = load_tiles(stats, i, num_tiles, padded_tiles)
        if reported:
            store_offset(source, stats, work.offsets, i, tiles, num_tiles, padded_tiles)
            store_kept(source, stats, work.kept, i, tiles, num_tiles, padded_tiles, kept)
        x, given = _draft_at(source, work, r, depth)
        verdict = tl.where(tiles.bad != 0, STOP + tiles.bad, DRAW)
        if given & (tiles.bad == 0):
            verdict = _verdict(
                source, cuts, draft, rates, work, _Draft(x, r, depth, i), tiles, num_tiles,
                padded_tiles, synthetic, coupled, has_draft_logits, edited, filtered, together,
            )  # fmt: skip
    tl.store(work.verdicts + r * (work.k + 1) + depth, verdict)


@jit
def _verdict(
    source,
    cuts,
    draft,
    rates,
    work,
    at,
    tiles,
    num_tiles,
    padded_tiles: tl.constexpr,
    synthetic: tl.constexpr,
    coupled: tl.constexpr,
    has_draft_logits: tl.constexpr,
    edited: tl.constexpr,
    filtered: tl.constexpr,
    together: tl.constexpr,
):
    """Decide a `_Draft` whose logit row is good."""
    random = is_random(source, at.i)
    if coupled:
        token = draw_token(
            source, cuts, at.i, tiles, random, num_tiles, padded_tiles, edited, filtered
        )
        verdict = _verdict_of(at, token)
    elif random:
        verdict = tl.full((), ACCEPT, tl.int32)
        if has_draft_logits:  # the residual reads the scalars that this stores
            ratio = draft_log_ratio(
                source, cuts, draft, work, at, tiles, num_tiles, padded_tiles, edited, filtered
            )
            held = is_held(source, at.token_id // TILE)
        if synthetic:
            accepted = _is_below(source, at, tl.load(rates + at.depth))
            verdict = tl.where(accepted, ACCEPT, RECOVER)
        elif together:  # a draft to be judged with the others of its row
            known = held & (ratio == ratio)  # NaN where q is bad
            tl.store(work.ratios + at.row * work.k + at.depth, tl.where(known, ratio, NEVER))
        elif has_draft_logits:  # there is no random row without
            accepted = _is_below(source, at, tl.exp(ratio))
            verdict = tl.where(held, tl.where(accepted, ACCEPT, RECOVER), _ELSEWHERE)
    elif synthetic:
        accepted = _is_below(source, at, tl.load(rates + at.depth))
        verdict = tl.where(accepted, ACCEPT, DRAW)
    else:
        verdict = _verdict_of(at, highest_token(source, tiles, at.i, edited))
    return verdict


@jit
def _verdict_of(at, token):
    """Accept a `_Draft` that is the target's own token; that is -1 where it is not held."""
    verdict = tl.where(at.token_id == token, ACCEPT, DRAW)
    return tl.where(token < 0, _ELSEWHERE, verdict)


@jit
def _is_below(source, at, probability):
    """Whether the acceptance uniform of a `_Draft` is below a probability."""
    return acceptance_uniform(source, at.i, at.depth) < probability


@jit
def acceptance_uniform(source, i, depth):
    """The uniform that decides on the draft of logit row i at a depth of its step."""
    seed, choice, position = noise_key(source, i)
    stream_id = _ACCEPT_STREAM + (depth << _DEPTH_SHIFT)
    w0, w1, _, _ = philox_words(tl.arange(0, 2), position - depth, choice, stream_id, seed)
    u = tl.where(tl.arange(0, 2) == 0, uniform_from_words(w0, w1), 1.0)  # index 0 of 0 and 2
    return tl.min(u, 0)


def decide(
    source: Source,
    stats: TileStats,
    cuts: Cut | None,
    drafts: Drafts,
    rates: Tensor | None,
    *,
    coupled: bool,
    has_draft_logits: bool,
    edited: bool,
    reported: bool,
    kept: bool = False,
    together: bool = False,
    shard: VocabShard,
) -> tuple[Verdicts, DraftTiles | None]:
    """Decide every draft by itself, whatever became of those before it.

    Args:
        source, stats, cuts: of the n logit rows, as `race.pick` takes them.
        drafts: as for `verification.verify`.
        rates: float64 [k], for synthetic acceptance; None compares with p and q.
        coupled: compare with the target's draw instead.
        has_draft_logits: whether q is `drafts.logits`; without it drafts of random rows are
            synthetic or coupled.
        edited, reported, kept: as for `tile_pass`.
        together: leave drafts of random rows to `blocks`, with their `Verdicts.ratios`; there are
            draft logits.
        shard: of the source; `stats` are those of all tiles.

    Returns:
        The verdicts, and q's tiles where `has_draft_logits`.
    """
    (num_rows, k), num_tiles = drafts.token_ids.shape, stats.maxima.shape[1]
    num_reported = len(source.rows) if reported else 0
    work = _empty_verdicts(drafts, num_reported, has_draft_logits, together)
    draft = _draft_tiles(source, drafts, work, shard) if has_draft_logits else None
    _verdict_kernel[(num_rows, 1 + k)](
        source,
        stats,
        cuts or Cut(stats.maxima, work.verdicts),
        draft or stats,
        stats.masses if rates is None else rates,
        work,
        num_tiles,
        padded_tiles=padded_lanes(num_tiles),
        synthetic=rates is not None,
        coupled=coupled,
        has_draft_logits=has_draft_logits,
        edited=edited,
        filtered=cuts is not None,
        reported=reported,
        kept=kept,
        together=together,
        enable_fp_fusion=False,
    )
    if not shard.is_whole:
        work = work._replace(verdicts=shard.highest(work.verdicts))
    if together and not shard.is_whole:
        work = work._replace(ratios=shard.highest(work.ratios))
    return work, draft


def _empty_verdicts(
    drafts: Drafts, num_reported: int, has_draft_logits: bool, together: bool
) -> Verdicts:
    """Allocate what the verdicts are written to."""
    (num_rows, k), device = drafts.token_ids.shape, drafts.token_ids.device

    def buffer(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    return Verdicts(
        *drafts[:4],
        k=k,
        depths=0 if drafts.logits is None else drafts.logits.shape[1],
        verdicts=buffer(num_rows, 1 + k, dtype=torch.int32),
        scalars=buffer(num_rows if has_draft_logits else 0, k, 4, dtype=torch.float64),
        offsets=buffer(num_reported, dtype=torch.float64),
        kept=buffer(num_reported, dtype=torch.float32),
        ratios=buffer(num_rows if together else 0, k, dtype=torch.float64),
    )


def _draft_tiles(source: Source, drafts: Drafts, work: Verdicts, shard: VocabShard) -> DraftTiles:
    """Sum q's tiles, of the drafts that are tested; those of all ranks."""
    assert drafts.logits is not None
    num_drafts, own = drafts.token_ids.numel(), source.num_tiles
    stats = torch.empty(2, num_drafts, own, dtype=torch.float32, device=drafts.logits.device)
    draft = DraftTiles(drafts.logits, *stats)
    # As the tile pass: one warp a tile.
    _draft_tiles_kernel[(num_drafts, own)](source, work, draft, own, num_warps=1)
    return draft if shard.is_whole else DraftTiles(drafts.logits, *shard.all_tiles(stats))
