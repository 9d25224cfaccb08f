"""Verification in plain torch, for the CPU: depth by depth, on the rows that are still running.

It may look at the host, so nothing is computed after a row's last token.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sampling.batch import Drafts, LogprobsOutput, SamplingBatch, Verification
from sampling.paths.torch_path import Processed, draw_target, prepare, report
from sampling.rows import PENALIZED, RANDOM, TEMPERATURE, SamplingRows
from sampling.speculative import draws
from sampling.speculative.draws import Distribution, draft_distribution
from sampling.speculative.torch_blocks import Blocks, decide_blocks, drafts_at


def verify(
    logits: Tensor,
    batch: SamplingBatch,
    rows: SamplingRows,
    drafts: Drafts,
    method: str,
    rates: Tensor | None,
) -> Verification:
    """Verify a step's drafts; arguments as for `verification.verify`.

    Args:
        method: "standard" and "block" have draft logits.
    """
    num_rows, k = drafts.token_ids.shape
    token_ids = torch.zeros((num_rows, 1 + k), dtype=torch.int32)
    num_new = torch.zeros(num_rows, dtype=torch.int32)
    num_accepted = torch.zeros_like(num_new)
    bad = torch.zeros(num_rows, dtype=torch.uint8)
    blocks = decide_blocks(logits, batch, rows, drafts) if method == "block" else None
    logprobs: LogprobsOutput | None = None
    alive = torch.arange(num_rows)
    for depth in range(1 + k):
        at = drafts.starts[alive] + depth
        part = batch.select(at)
        target = prepare(logits[at], part, rows)
        x = drafts_at(depth, alive, drafts, rows.vocab_size)
        own = blocks and Blocks(*(column[alive] for column in blocks))
        tokens, accepted = _decide(x, depth, target, part, rows, drafts, method, rates, own)
        good = target.bad == 0
        token_ids[alive, depth] = tokens.masked_fill_(~good, 0)
        accepted &= good
        num_new[alive] += good
        num_accepted[alive] += accepted
        bad[alive] = target.bad
        if batch.needs.logprobs:
            reported = report(target, tokens, part, rows)
            logprobs = logprobs or reported.zeros(len(logits))
            logprobs.put(at, reported)
        alive = alive[accepted & (depth + 1 < drafts.room[alive])]
        if not len(alive):
            break
    if batch.needs.penalized:  # only now: until here the drafts count by the history
        _count(token_ids, num_new, batch.select(drafts.starts), rows)
    return Verification(token_ids, num_new, num_accepted, bad, logprobs)


def _decide(
    x: Tensor,
    depth: int,
    target: Processed,
    batch: SamplingBatch,
    rows: SamplingRows,
    drafts: Drafts,
    method: str,
    rates: Tensor | None,
    blocks: Blocks | None,
) -> tuple[Tensor, Tensor]:
    """Decide each row's token at a depth, int32 [m], and whether it is its draft `x` accepted."""
    random = torch.from_numpy(rows.flags_np[batch.rows_np] & RANDOM != 0)
    tested = (x >= 0) & (random | (method == "synthetic"))
    if method == "coupled":
        tested = torch.zeros_like(tested)
    tokens = torch.empty(len(x), dtype=torch.int32)
    accepted = torch.zeros(len(x), dtype=torch.bool)
    plain, index = (~tested).nonzero().flatten(), tested.nonzero().flatten()
    if len(plain):
        tokens[plain] = draw_target(target.select(plain), batch.select(plain), rows)
        accepted[plain] = tokens[plain] == x[plain]
    if len(index):
        own = batch.rows[index]
        chosen = target.select(index)
        temperature = rows.floats[own, TEMPERATURE]
        p = Distribution.of(chosen.values, temperature, chosen.cut, shard=rows.shard)
        q = None
        if drafts.logits is not None:
            q = draft_distribution(drafts.logits[own.long(), depth], rows.shard)
        rate = None if rates is None else rates[depth]
        position = batch.positions[index]
        is_kept = None
        if blocks is not None:
            is_kept, p = depth < blocks.num_accepted[index], p.scaled(blocks.log_ratio[index])
        some = _test(x[index], depth, p, q, rows, own, position, rate, is_kept)
        tokens[index], accepted[index] = some
    return tokens, accepted


def _test(
    x: Tensor,
    depth: int,
    p: Distribution,
    q: Distribution | None,
    rows: SamplingRows,
    own: Tensor,
    positions: Tensor,
    rate: Tensor | None,
    is_kept: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Accept drafts by noise, at a rate or as `is_kept` says, and recover tokens for the others."""
    first = rows.noise_key(own, positions - depth)
    if is_kept is not None:
        accepted = is_kept
    elif rate is not None:
        accepted = draws.acceptance_uniforms(first, depth) < rate
    else:
        assert q is not None
        accepted = draws.accept(x, p, q, first, depth)
    tokens = x.int()
    refused = (~accepted).nonzero().flatten()
    if len(refused):
        key = rows.noise_key(own[refused], positions[refused])
        rest = q and q.select(refused)
        tokens[refused] = draws.recovered_draw(x[refused], p.select(refused), rest, key).int()
    return tokens, accepted


def _count(token_ids: Tensor, num_new: Tensor, batch: SamplingBatch, rows: SamplingRows) -> None:
    """Count the tokens int32 [R, 1 + k] that are kept in penalised rows."""
    penalized = torch.from_numpy(np.asarray(rows.flags_np[batch.rows_np] & PENALIZED != 0))
    for depth, tokens in enumerate(token_ids.unbind(1)):
        rows.counts.add(batch.rows, tokens, penalized & (depth < num_new))
