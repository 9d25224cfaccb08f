"""Block verification in plain torch: which prefix of a row's drafts is kept, by all of them.

`verification` has the rule. A prefix ends after the last draft, before a depth without room or
with bad logits; it is all of the drafts then, as in a step that has no more.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling.batch import Drafts, SamplingBatch
from sampling.paths.torch_path import prepare
from sampling.rows import RANDOM, TEMPERATURE, SamplingRows
from sampling.speculative import draws
from sampling.speculative.draws import Distribution, draft_distribution


class Blocks(NamedTuple):
    """The drafts that are accepted in each of R rows; those of greedy rows are not decided here."""

    num_accepted: Tensor  # int64 [R]
    log_ratio: Tensor  # float64 [R], log r after them


def decide_blocks(
    logits: Tensor, batch: SamplingBatch, rows: SamplingRows, drafts: Drafts
) -> Blocks:
    """Decide the drafts of random rows together; arguments as for `verification.verify`."""
    num_rows, k = drafts.token_ids.shape
    flags = rows.flags_np[batch.select(drafts.starts).rows_np]
    alive = torch.from_numpy(flags & RANDOM != 0).nonzero().flatten()
    log_ratio = torch.zeros(num_rows, dtype=torch.float64)
    found = Blocks(torch.zeros(num_rows, dtype=torch.int64), torch.zeros_like(log_ratio))
    for depth in range(1 + k):
        x = drafts_at(depth, alive, drafts, rows.vocab_size)
        at = drafts.starts[alive] + depth  # there is one: a row goes on after its drafts alone
        part = batch.select(at)
        target = prepare(logits[at], part, rows)
        goes_on = (x >= 0) & (depth < drafts.room[alive]) & (target.bad == 0)
        index, ratio = goes_on.nonzero().flatten(), log_ratio[alive]
        limit = ratio.exp()
        if len(index):
            own, chosen = part.rows[index], target.select(index)
            temperature = rows.floats[own, TEMPERATURE]
            p = Distribution.of(chosen.values, temperature, chosen.cut, shard=rows.shard)
            assert drafts.logits is not None
            q = draft_distribution(drafts.logits[own.long(), depth], rows.shard)
            limit[index] = _limit(p, q, ratio[index])
            log_ratio[alive[index]] = _next(p, q, x[index], ratio[index])
        if depth:
            key = rows.noise_key(part.rows, part.positions - depth)
            passes = draws.acceptance_uniforms(key, depth - 1) < limit
            found.num_accepted[alive[passes]] = depth
            found.log_ratio[alive[passes]] = ratio[passes]
        alive = alive[index]
        if not len(alive):
            break
    return found


def _limit(p: Distribution, q: Distribution, log_ratio: Tensor) -> Tensor:
    """Z / (Z + 1 - r) float64 [n], 1 where r is."""
    left = draws.residual_mass(p.scaled(log_ratio), q)
    return torch.where(log_ratio < 0.0, left / (left - log_ratio.expm1()), 1.0)


def _next(p: Distribution, q: Distribution, x: Tensor, log_ratio: Tensor) -> Tensor:
    """log r after the drafts x int64 [n]; -inf where q is bad."""
    ids = x[:, None]
    gained = p.shard.of_owners(p.log_probs(ids) - q.log_probs(ids), ids)[:, 0]
    following = (log_ratio + gained).clamp(max=0.0)
    return torch.where(following.isnan(), -torch.inf, following)


def drafts_at(depth: int, alive: Tensor, drafts: Drafts, vocab_size: int) -> Tensor:
    """The drafts of some rows at a depth, int64 [m]; -1 where there is none."""
    if depth == drafts.token_ids.shape[1]:
        return torch.full_like(alive, -1)
    x = drafts.token_ids[alive, depth].long()
    given = (depth < drafts.num_drafts[alive]) & (x >= 0) & (x < vocab_size)
    return torch.where(given, x, -1)
