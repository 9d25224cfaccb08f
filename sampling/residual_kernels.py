# mypy: allow-untyped-defs, allow-incomplete-defs
"""The recovered token in Triton: a race over max(p - q, 0), or over p without a one-hot draft.

A residual's tile masses are float32 sums of exp(a) (1 - exp(d)), a = log p, d = log q - log p,
with d in float64, so that nothing cancels; their relative error is that of the race's masses.
Inside the winning tile all is float64. Whether d < 0 is decided alike at both levels.

A one-hot draft needs no second pass: the residual's masses are the target's, but for the tile of
the draft itself, which is summed afresh without it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sampling.draw_kernels import (
    Draft,
    Target,
    draft_logits,
    highest_token,
    is_random,
    noise_key,
    padded,
    row_mass,
    target_logits,
    temperature_of,
    winner,
)
from sampling.logit_kernels import TILE, Source
from sampling.noise import LEVEL_TILE, LEVEL_TOKEN, Purpose, exponential_range, stream
from sampling.triton_support import constexpr, jit, tl

_RESIDUAL_TILE = constexpr(stream(Purpose.RESIDUAL, LEVEL_TILE))
_RESIDUAL_TOKEN = constexpr(stream(Purpose.RESIDUAL, LEVEL_TOKEN))


@jit
def _minus_expm1(d):
    """1 - exp(d) of float64 d < 0, to 2^-50; as `noise.exponential` (Goldberg 1991)."""
    w = tl.exp(d)
    ratio = (1.0 - w) / tl.where(w == 1.0, 1.0, tl.log(w))
    return tl.where(w == 1.0, -d, tl.where(w == 0.0, 1.0, ratio * d))


@jit
def _minus_expm1_f32(d):
    """The same of float32 d, to 2^-22: Taylor's series above -1/2."""
    series = 1.0 + d * (1.0 / 8)
    series = 1.0 + d * (1.0 / 7) * series
    series = 1.0 + d * (1.0 / 6) * series
    series = 1.0 + d * (1.0 / 5) * series
    series = 1.0 + d * (1.0 / 4) * series
    series = 1.0 + d * (1.0 / 3) * series
    series = 1.0 + d * (1.0 / 2) * series
    return tl.where(d > -0.5, -d * series, 1.0 - tl.exp(d))


@jit
def _scalars_kernel(source, target, draft, wanted, scalars, num_tiles, padded_tiles: tl.constexpr):
    """1 / T, and of p and q the highest logit and the log of the mass relative to it."""
    i = tl.program_id(0).to(tl.int64)
    if tl.load(wanted + i):
        temperature = temperature_of(source, i)
        top, log_mass = row_mass(target, i, num_tiles, temperature, padded_tiles)
        draft_top, draft_mass = row_mass(draft, i, num_tiles, 1.0, padded_tiles)
        tl.store(scalars + i * 5, 1.0 / temperature)
        tl.store(scalars + i * 5 + 1, top)
        tl.store(scalars + i * 5 + 2, log_mass)
        tl.store(scalars + i * 5 + 3, draft_top)
        tl.store(scalars + i * 5 + 4, draft_mass)


@jit
def _log_ratio(values, drafts, scalars, i):
    """log p and log q - log p, float64; 0 for the latter where p is 0."""
    inverse, top = tl.load(scalars + i * 5), tl.load(scalars + i * 5 + 1)
    log_p = (values - top) * inverse - tl.load(scalars + i * 5 + 2)
    log_q = (drafts - tl.load(scalars + i * 5 + 3)) - tl.load(scalars + i * 5 + 4)
    return log_p, tl.where(values > float("-inf"), log_q - log_p, 0.0)


@jit
def _residual_kernel(
    source, target, draft, wanted, scalars, masses, num_tiles, edited: tl.constexpr
):
    """The mass of max(p - q, 0) in one tile."""
    i, tile = (tl.program_id(0) // num_tiles).to(tl.int64), tl.program_id(0) % num_tiles
    if tl.load(wanted + i):
        ids = tile * TILE + tl.arange(0, TILE)
        values = target_logits(source, target, i, ids, tile, tile + 1, edited)
        log_p, gap = _log_ratio(values, draft_logits(source, draft, i, ids), scalars, i)
        weights = tl.exp(log_p.to(tl.float32)) * _minus_expm1_f32(gap.to(tl.float32))
        mass = tl.sum(tl.where(gap < 0.0, weights, 0.0), 0)
        tl.store(masses + i * num_tiles + tile, mass)


@jit
def _recovered_kernel(
    source,
    target,
    draft,
    draft_ids,
    wanted,
    scalars,
    masses,
    token_ids,
    num_tiles,
    padded_tiles: tl.constexpr,
    edited: tl.constexpr,
    has_draft: tl.constexpr,
):
    """Race the residual's tiles, then the winner's tokens; the highest logit of greedy rows."""
    i = tl.program_id(0).to(tl.int64)
    if tl.load(wanted + i):
        if is_random(source, i):
            x = tl.load(draft_ids + i).to(tl.int32)
            token = _recovered(
                source,
                target,
                draft,
                x,
                scalars,
                masses,
                i,
                num_tiles,
                padded_tiles,
                edited,
                has_draft,
            )
        else:
            token = highest_token(source, target, i, num_tiles, padded_tiles, edited)
        tl.store(token_ids + i, token)


@jit
def _recovered(
    source,
    target,
    draft,
    x,
    scalars,
    masses,
    i,
    num_tiles,
    padded_tiles: tl.constexpr,
    edited: tl.constexpr,
    has_draft: tl.constexpr,
):
    temperature = temperature_of(source, i)
    tile = tl.arange(0, padded_tiles)
    at, inside = i * num_tiles + tile, tile < num_tiles
    maxima = tl.load(target.maxima + at, mask=inside, other=float("-inf"))
    target_masses = tl.load(target.masses + at, mask=inside, other=0.0)
    top = tl.max(maxima, 0).to(tl.float64)
    target_masses = target_masses * tl.exp((maxima - top) / temperature)
    if has_draft:
        residual = tl.load(masses + at, mask=inside, other=0.0).to(tl.float64)
    else:
        own = x // TILE  # its mass without x, summed afresh
        ids = own * TILE + tl.arange(0, TILE)
        values = target_logits(source, target, i, ids, own, own + 1, edited)
        weights = tl.where(ids == x, 0.0, tl.exp((values - top) / temperature))
        residual = tl.where(tile == own, tl.sum(weights, 0), target_masses)
    # As in `draws.recovered_draw`: where rounding left no residual, the token comes from p.
    nothing = tl.max(residual, 0) <= 0.0
    residual = tl.where(nothing, target_masses, residual)
    seed, choice, position = noise_key(source, i)
    noise = exponential_range(0, position, choice, _RESIDUAL_TILE, seed, padded_tiles // 2)
    won = tl.minimum(winner(noise, residual, tile), num_tiles - 1)
    ids = won * TILE + tl.arange(0, TILE)
    values = target_logits(source, target, i, ids, won, won + 1, edited)
    if has_draft:
        log_p, gap = _log_ratio(values, draft_logits(source, draft, i, ids), scalars, i)
        weights = tl.where(gap < 0.0, tl.exp(log_p) * _minus_expm1(gap), 0.0)
        nothing = nothing | (tl.max(weights, 0) <= 0.0)
        weights = tl.where(nothing, tl.exp(log_p), weights)
    else:
        weights = tl.exp((values - top) / temperature)
        weights = tl.where((ids == x) & (nothing == 0), 0.0, weights)
    noise = exponential_range(won * TILE, position, choice, _RESIDUAL_TOKEN, seed, TILE // 2)
    return tl.minimum(winner(noise, weights, ids), source.vocab_size - 1)


def recovered_draw(
    source: Source,
    target: Target,
    draft: Draft | None,
    draft_ids: Tensor,
    wanted: Tensor,
    *,
    edited: bool,
) -> Tensor:
    """The tokens in place of refused drafts, int32 [n]; undefined where not wanted.

    Args:
        source, target, draft, draft_ids, edited: as for `draw_kernels.accept`.
        wanted: bool [n], the rows to draw; the others cost nothing.
    """
    n, num_tiles = target.maxima.shape
    token_ids = torch.empty(n, dtype=torch.int32, device=wanted.device)
    masses, scalars = target.masses, target.masses
    shared = {"edited": edited, "enable_fp_fusion": False}
    lanes = padded(num_tiles)
    if draft is not None:
        masses = torch.empty((n, num_tiles), dtype=torch.float32, device=wanted.device)
        scalars = torch.empty((n, 5), dtype=torch.float64, device=wanted.device)
        _scalars_kernel[(n,)](
            source, target, draft, wanted, scalars, num_tiles, padded_tiles=lanes, num_warps=1
        )
        _residual_kernel[(num_tiles * n,)](
            source, target, draft, wanted, scalars, masses, num_tiles, **shared
        )
    _recovered_kernel[(n,)](
        source,
        target,
        draft or target,
        draft_ids,
        wanted,
        scalars,
        masses,
        token_ids,
        num_tiles,
        padded_tiles=lanes,
        has_draft=draft is not None,
        **shared,
    )
    return token_ids
