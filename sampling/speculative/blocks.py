# mypy: allow-untyped-defs, allow-incomplete-defs
"""Block verification in Triton: the drafts of a row decided together, after `verdict`.

`verification` has the rule, `torch_blocks` the twin. `verdict` leaves each draft's log p / q. One
program a row then multiplies them up to r and scales p at each depth by the r before it, in
`Verdicts.scalars`; so the residual's kernel measures Z, and the draw after the last draft needs
nothing new. Z is measured where it can matter: h is never above r, so prefixes with u >= r fail
without it, and no prefix counts where all drafts pass.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling.device.triton_support import jit, padded_lanes, tl
from sampling.kernels.logits import Source, global_tile
from sampling.kernels.row_params import is_random
from sampling.race import Cut
from sampling.speculative.ratio import minus_expm1
from sampling.speculative.residual import residual_mass
from sampling.speculative.verdict import (
    ACCEPT,
    NEVER,
    RECOVER,
    DraftTiles,
    Verdicts,
    acceptance_uniform,
)
from sampling.vocab_shard import VocabShard


class _Chains(NamedTuple):
    """The tests of R rows' prefixes; entry j is of the first j + 1 drafts."""

    lengths: Tensor  # int32 [R], drafts that are decided together; 0 in greedy rows
    log_ratios: Tensor  # float64 [R, k], log r
    uniforms: Tensor  # float64 [R, k], u
    may_pass: Tensor  # int32 [R, k], whether u < r


@jit
def _chain_kernel(source, work, chains):
    """Multiply a row's ratios, and scale p at each depth."""
    r = tl.program_id(0).to(tl.int64)
    start = tl.load(work.starts + r).to(tl.int64)
    goes_on = is_random(source, start).to(tl.int32)
    length, log_ratio = tl.full((), 0, tl.int32), tl.full((), 0.0, tl.float64)
    for depth in range(work.k):
        verdict = tl.load(work.verdicts + r * (work.k + 1) + depth)
        goes_on = goes_on * (verdict == ACCEPT).to(tl.int32)
        if goes_on > 0:
            at = r * work.k + depth
            log_mass = work.scalars + at * 4 + 1
            tl.store(log_mass, tl.load(log_mass) - log_ratio)
            after = tl.minimum(log_ratio + tl.load(work.ratios + at), 0.0)
            log_ratio = tl.where(log_ratio > NEVER, after, NEVER)  # never back from 0
            u = acceptance_uniform(source, start + depth, length)
            tl.store(chains.log_ratios + at, log_ratio)
            tl.store(chains.uniforms + at, u)
            tl.store(chains.may_pass + at, (u < tl.exp(log_ratio)).to(tl.int32))
            length += 1
    tl.store(chains.lengths + r, length)


@jit
def _mass_kernel(
    source, cuts, draft, work, chains, masses, num_tiles, edited: tl.constexpr,
    filtered: tl.constexpr,
):  # fmt: skip
    """Measure max(r p - q, 0) in one tile at one depth, where it may decide."""
    own_tile, r, depth = tl.program_id(1), tl.program_id(0).to(tl.int64), tl.program_id(2)
    length = tl.load(chains.lengths + r)
    if depth < length:
        own = chains.may_pass + r * work.k
        all_pass = tl.load(own + length - 1)
        may_pass = (tl.load(own + tl.maximum(depth - 1, 0)) > 0) | (depth == 0)
        if (all_pass == 0) & may_pass:
            tile = global_tile(source, own_tile)
            mass = residual_mass(source, cuts, draft, work, r, depth, tile, edited, filtered)
            tl.store(masses + (r * work.k + depth) * num_tiles + own_tile, mass)


@jit
def _block_kernel(work, chains, masses, num_tiles, padded_tiles: tl.constexpr):
    """Find the longest prefix of a row that passes, and refuse the draft after it."""
    r = tl.program_id(0).to(tl.int64)
    length = tl.load(chains.lengths + r)
    if length > 0:
        longest = tl.full((), 0, tl.int32)
        all_pass = tl.load(chains.may_pass + r * work.k + length - 1) > 0
        for depth in range(1, length):
            before = r * work.k + depth - 1
            if (tl.load(chains.may_pass + before) > 0) & (all_pass == 0):
                tile = tl.arange(0, padded_tiles)
                at = masses + (before + 1) * num_tiles + tile
                left = tl.sum(tl.load(at, mask=tile < num_tiles, other=0.0).to(tl.float64), 0)
                log_ratio = tl.load(chains.log_ratios + before)
                rest = tl.max(minus_expm1(log_ratio + tl.zeros((2,), tl.float64)), 0)  # 1 - r
                limit = tl.where(log_ratio < 0.0, left / (left + rest), 1.0)
                passes = tl.load(chains.uniforms + before) < limit
                longest = tl.where(passes, depth, longest)
        if all_pass == 0:
            tl.store(work.verdicts + r * (work.k + 1) + longest, RECOVER)


def decide_blocks(
    source: Source,
    cuts: Cut | None,
    work: Verdicts,
    draft: DraftTiles,
    shard: VocabShard,
    *,
    edited: bool,
) -> Tensor:
    """Decide the drafts that `verdict.decide` left, in place.

    Args:
        source, cuts, edited, shard: as for `verdict.decide`.
        work, draft: what `decide` returned.

    Returns:
        float32 [R * k, tiles], the masses of the residuals, for `residual.draw_last_tokens`.
    """
    (num_rows, k), own = work.token_ids.shape, source.num_tiles

    def buffer(*shape: int, dtype: torch.dtype) -> Tensor:  # apart, so that each is aligned
        return torch.empty(shape, dtype=dtype, device=work.verdicts.device)

    chains = _Chains(
        lengths=buffer(num_rows, dtype=torch.int32),
        log_ratios=buffer(num_rows, k, dtype=torch.float64),
        uniforms=buffer(num_rows, k, dtype=torch.float64),
        may_pass=buffer(num_rows, k, dtype=torch.int32),
    )
    _chain_kernel[(num_rows,)](source, work, chains, enable_fp_fusion=False)
    masses = buffer(num_rows * k, own, dtype=torch.float32)
    _mass_kernel[(num_rows, own, k)](
        source,
        cuts or Cut(draft.maxima, chains.lengths),
        draft,
        work,
        chains,
        masses,
        own,
        edited=edited,
        filtered=cuts is not None,
        enable_fp_fusion=False,
    )
    if not shard.is_whole:
        masses = shard.all_tiles(masses)
    num_tiles = masses.shape[1]
    _block_kernel[(num_rows,)](
        work,
        chains,
        masses,
        num_tiles,
        padded_tiles=padded_lanes(num_tiles),
        enable_fp_fusion=False,
    )
    return masses
