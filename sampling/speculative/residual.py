# mypy: allow-untyped-defs, allow-incomplete-defs
"""The draw of the token after each row's last accepted draft, in Triton: a program a row.

Where a draft was refused the draw is a race over the residual max(p - q, 0), or over p without a
one-hot draft, which synthetic acceptance alone refuses so; elsewhere it is the target's own draw.

A residual's tile masses are float32 sums of exp(a) (1 - exp(d)), a = log p, d = log q - log p,
with d in float64, so that nothing cancels; their relative error is that of the race's masses.
Inside the winning tile all is float64. Whether d < 0 is decided alike at both levels.

A one-hot draft needs no second pass: the residual's masses are the target's, but for the tile of
the draft itself, which is summed afresh without it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling.device.triton_support import constexpr, jit, padded_lanes, tl
from sampling.kernels.logits import TILE, Source, global_tile, is_held
from sampling.kernels.race import draw_token, load_tiles, winner
from sampling.kernels.row_params import is_random, load_temperature, noise_key
from sampling.kernels.tile_pass import TileStats
from sampling.noise import LEVEL_TILE, LEVEL_TOKEN, Purpose, exponential_range, stream
from sampling.race import Cut
from sampling.speculative.ratio import (
    draft_logits,
    draft_slot,
    log_ratio,
    minus_expm1,
    minus_expm1_f32,
    target_logits,
)
from sampling.speculative.verdict import (
    ACCEPT,
    DRAW,
    RECOVER,
    STOP,
    DraftTiles,
    Verdicts,
)
from sampling.vocab_shard import VocabShard

_RESIDUAL_TILE = constexpr(stream(Purpose.RESIDUAL, LEVEL_TILE))
_RESIDUAL_TOKEN = constexpr(stream(Purpose.RESIDUAL, LEVEL_TOKEN))


@jit
def _last_verdict(work, r, lanes: tl.constexpr):
    """The number of drafts that are accepted, and the verdict at the depth after them."""
    lane = tl.arange(0, lanes)
    at = work.verdicts + r * (work.k + 1) + lane
    verdicts = tl.load(at, mask=lane <= work.k, other=STOP)
    num_accepted = tl.min(tl.where(verdicts != ACCEPT, lane, lanes), 0)
    return num_accepted, tl.sum(tl.where(lane == num_accepted, verdicts, 0), 0)


@jit
def _residual_kernel(
    source,
    cuts,
    draft,
    work,
    masses,
    num_tiles,
    lanes: tl.constexpr,
    edited: tl.constexpr,
    filtered: tl.constexpr,
):
    """Measure max(p - q, 0) in one tile of a row whose token must be recovered."""
    own_tile, r = tl.program_id(1), tl.program_id(0).to(tl.int64)
    tile = global_tile(source, own_tile)
    depth, verdict = _last_verdict(work, r, lanes)
    if verdict == RECOVER:
        mass = residual_mass(source, cuts, draft, work, r, depth, tile, edited, filtered)
        tl.store(masses + r * num_tiles + own_tile, mass)


@jit
def residual_mass(
    source, cuts, draft, work, r, depth, tile, edited: tl.constexpr, filtered: tl.constexpr
):
    """The sum of max(p - q, 0) in a tile at a depth of row r, float32; the scalars scale p."""
    i = tl.load(work.starts + r).to(tl.int64) + depth
    ids = tile * TILE + tl.arange(0, TILE)
    values = target_logits(source, cuts, i, ids, tile, tile + 1, edited, filtered)
    drafts = draft_logits(source, draft.logits, draft_slot(source, i, work.depths, depth), ids)
    scalars = work.scalars + (r * work.k + depth) * 4
    log_p, gap = log_ratio(values, drafts, scalars, 1.0 / load_temperature(source, i))
    weights = tl.exp(log_p.to(tl.float32)) * minus_expm1_f32(gap.to(tl.float32))
    return tl.sum(tl.where(gap < 0.0, weights, 0.0), 0)


@jit
def _one_hot_kernel(
    source,
    stats,
    cuts,
    work,
    rests,
    num_tiles,
    padded_tiles: tl.constexpr,
    lanes: tl.constexpr,
    edited: tl.constexpr,
    filtered: tl.constexpr,
):
    """Measure the tile of a refused one-hot draft without it; -1 where it is not held."""
    r = tl.program_id(0).to(tl.int64)
    depth, verdict = _last_verdict(work, r, lanes)
    rest = tl.full((), -1.0, tl.float64)
    if verdict == RECOVER:
        i = tl.load(work.starts + r).to(tl.int64) + depth
        x = tl.load(work.token_ids + r * work.k + depth).to(tl.int32)
        top = load_tiles(stats, i, num_tiles, padded_tiles).top.to(tl.float64)
        own = _rest_of_tile(source, cuts, i, x, top, load_temperature(source, i), edited, filtered)
        rest = tl.where(is_held(source, x // TILE), own, -1.0)
    tl.store(rests + r, rest)


@jit
def _rest_of_tile(
    source, cuts, i, x, top, temperature, edited: tl.constexpr, filtered: tl.constexpr
):
    """The mass of a token's tile without the token, summed afresh, float64."""
    tile = x // TILE
    ids = tile * TILE + tl.arange(0, TILE)
    values = target_logits(source, cuts, i, ids, tile, tile + 1, edited, filtered)
    return tl.sum(tl.where(ids == x, 0.0, tl.exp((values - top) / temperature)), 0)


@jit
def _last_token_kernel(
    source,
    stats,
    cuts,
    draft,
    work,
    masses,
    rests,
    verified,
    num_tiles,
    masses_a_row,
    padded_tiles: tl.constexpr,
    lanes: tl.constexpr,
    has_draft_logits: tl.constexpr,
    edited: tl.constexpr,
    filtered: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64)
    depth, verdict = _last_verdict(work, r, lanes)
    start = tl.load(work.starts + r).to(tl.int64)
    i, token = start + depth, tl.full((), 0, tl.int32)
    if (verdict == DRAW) | (verdict == RECOVER):
        tiles = load_tiles(stats, i, num_tiles, padded_tiles)
        if verdict == DRAW:
            token = draw_token(
                source, cuts, i, tiles, is_random(source, i), num_tiles, padded_tiles, edited,
                filtered,
            )  # fmt: skip
        else:
            token = _recovered(
                source, cuts, draft, work, masses, rests, r, i, depth, tiles, num_tiles,
                masses_a_row, padded_tiles, has_draft_logits, edited, filtered,
            )  # fmt: skip
    _store_tokens(verified, work, r, start, depth, verdict, token, lanes)


@jit
def _store_tokens(verified, work, r, start, depth, verdict, token, lanes: tl.constexpr):
    """Store the accepted drafts, `depth` of them, and the token after them if there is one."""
    num_new = depth + ((verdict == DRAW) | (verdict == RECOVER)).to(tl.int32)
    tl.store(verified.num_new + r, num_new)
    tl.store(verified.num_accepted + r, depth)
    tl.store(verified.bad + r, tl.maximum(verdict - STOP, 0))
    lane = tl.arange(0, lanes)
    drafts = tl.load(work.token_ids + r * work.k + lane, mask=lane < depth, other=0)
    tokens = tl.where(lane == depth, token, drafts.to(tl.int32))
    tl.store(verified.token_ids + r * (work.k + 1) + lane, tokens, mask=lane <= work.k)
    own = lane <= tl.load(work.num_drafts + r)
    tl.store(verified.chosen + start + lane, tl.where(lane < num_new, tokens, -1), mask=own)


@jit
def _recovered(
    source,
    cuts,
    draft,
    work,
    masses,
    rests,
    r,
    i,
    depth,
    tiles,
    num_tiles,
    masses_a_row,
    padded_tiles: tl.constexpr,
    has_draft_logits: tl.constexpr,
    edited: tl.constexpr,
    filtered: tl.constexpr,
):
    """Draw the token in place of a refused draft of a random row; -1 where it is not held."""
    temperature = load_temperature(source, i)
    inverse, top = 1.0 / temperature, tiles.top.to(tl.float64)
    tile = tl.arange(0, padded_tiles)
    target_masses = tiles.masses * tl.exp((tiles.maxima - top) / temperature)
    x = tl.load(work.token_ids + r * work.k + depth).to(tl.int32)
    scalars = work.scalars + (r * work.k + depth) * 4
    if has_draft_logits:
        own = r * masses_a_row + tl.minimum(depth, masses_a_row - 1)
        at = masses + own * num_tiles + tile
        residual = tl.load(at, mask=tile < num_tiles, other=0.0).to(tl.float64)
    else:
        if rests is None:
            rest = _rest_of_tile(source, cuts, i, x, top, temperature, edited, filtered)
        else:
            rest = tl.load(rests + r)
        residual = tl.where(tile == x // TILE, rest, target_masses)
    # As in `draws.recovered_draw`: where rounding left no residual, the token comes from p.
    nothing = tl.max(residual, 0) <= 0.0
    residual = tl.where(nothing, target_masses, residual)
    seed, choice, position = noise_key(source, i)
    noise = exponential_range(0, position, choice, _RESIDUAL_TILE, seed, padded_tiles // 2)
    won = tl.minimum(winner(noise, residual, tile), num_tiles - 1)
    ids = won * TILE + tl.arange(0, TILE)
    values = target_logits(source, cuts, i, ids, won, won + 1, edited, filtered)
    if has_draft_logits:
        drafts = draft_logits(source, draft.logits, draft_slot(source, i, work.depths, depth), ids)
        log_p, gap = log_ratio(values, drafts, scalars, inverse)
        weights = tl.where(gap < 0.0, tl.exp(log_p) * minus_expm1(gap), 0.0)
        nothing = nothing | (tl.max(weights, 0) <= 0.0)
        weights = tl.where(nothing, tl.exp(log_p), weights)
    else:
        weights = tl.exp((values - top) / temperature)
        weights = tl.where((ids == x) & (nothing == 0), 0.0, weights)
    noise = exponential_range(won * TILE, position, choice, _RESIDUAL_TOKEN, seed, TILE // 2)
    token = tl.minimum(winner(noise, weights, ids), source.vocab_size - 1)
    return tl.where(is_held(source, won), token, -1)


class VerifiedTokens(NamedTuple):
    """The tokens that verification leaves, for R rows with n logit rows."""

    token_ids: Tensor  # int32 [R, 1 + k], 0 beyond `num_new`
    num_new: Tensor  # int32 [R]
    num_accepted: Tensor  # int32 [R]
    bad: Tensor  # uint8 [R], as in `SamplerOutput`
    chosen: Tensor  # int32 [n], the same tokens by logit row; -1 where none was kept


def draw_last_tokens(
    source: Source,
    stats: TileStats,
    cuts: Cut | None,
    work: Verdicts,
    draft: DraftTiles | None,
    shard: VocabShard,
    *,
    edited: bool,
    block_masses: Tensor | None = None,
) -> VerifiedTokens:
    """Draw one token after the accepted drafts in each row.

    Args:
        source, stats, cuts, edited: as for `verdict.decide`.
        work, draft: what `decide` returned.
        shard: as for `decide`.
        block_masses: of the residuals at all depths, as `blocks.decide_blocks` gives them.
    """
    (num_rows, k), num_tiles = work.token_ids.shape, stats.maxima.shape[1]
    device = stats.maxima.device

    def buffer(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    verified = VerifiedTokens(
        buffer(num_rows, 1 + k),
        buffer(num_rows),
        buffer(num_rows),
        buffer(num_rows, dtype=torch.uint8),
        buffer(len(source.rows)),
    )
    shared = {"edited": edited, "filtered": cuts is not None, "enable_fp_fusion": False}
    lanes = padded_lanes(1 + k)
    cuts = cuts or Cut(stats.maxima, verified.num_new)
    padded_tiles, divided = padded_lanes(num_tiles), not shard.is_whole
    masses, rests = stats.masses, None
    if block_masses is not None:
        masses = block_masses
    elif draft is not None:
        own = source.num_tiles
        masses = buffer(num_rows, own, dtype=torch.float32)
        _residual_kernel[(num_rows, own)](
            source, cuts, draft, work, masses, own, lanes=lanes, **shared
        )
        if divided:
            masses = shard.all_tiles(masses)
    elif divided:
        rests = buffer(num_rows, dtype=torch.float64)
        _one_hot_kernel[(num_rows,)](
            source, stats, cuts, work, rests, num_tiles, padded_tiles, lanes=lanes, **shared
        )
        rests = shard.highest(rests)
    _last_token_kernel[(num_rows,)](
        source,
        stats,
        cuts,
        draft or stats,
        work,
        masses,
        rests,
        verified,
        num_tiles,
        1 if block_masses is None else k,
        padded_tiles=padded_tiles,
        lanes=lanes,
        has_draft_logits=draft is not None,
        **shared,
    )
    return _of_holders(verified, shard) if divided else verified


def _of_holders(verified: VerifiedTokens, shard: VocabShard) -> VerifiedTokens:
    """The tokens as the ranks that hold them drew them; they are -1 on the others."""
    token_ids, chosen = verified.token_ids, verified.chosen
    gathered = shard.highest(torch.cat((token_ids.view(-1), chosen)))
    token_ids, chosen = (
        gathered[: token_ids.numel()].view_as(token_ids),
        gathered[token_ids.numel() :],
    )
    return verified._replace(token_ids=token_ids, chosen=chosen)
