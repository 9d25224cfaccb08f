"""The drafter's draw: one token a row and draft step from its logits, by one of three methods.

    greedy   the highest token, the lowest id among equals; the draft is one-hot
    gumbel   x ~ q = softmax(logits / T) by noise of Purpose.DRAFT; q's logits are stored for
             verification
    coupled  as gumbel, with the noise by which the target will draw at the same position,
             Purpose.TARGET; verification compares tokens and needs no q

A row of temperature 0 takes its highest token whatever the method. The masks that always hold
(allowed ids, min_tokens, bad words of one token) are applied before: the target will not take
such a draft. Bias, penalties, filters and longer bad words are not. Drafts are drawn from the very
logits that are stored, so verification is exact whatever the drafter's logits are, NaN included.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from sampling.batch import SamplingBatch
from sampling.device.triton_support import kernels_run_on
from sampling.noise import Purpose
from sampling.paths.torch_edits import mask_drafts
from sampling.race import MIN_SCALE, greedy
from sampling.rows import RANDOM, TEMPERATURE, SamplingRows
from sampling.sharded.tiles import kernel_shard
from sampling.speculative import triton_drafting as draft_kernels
from sampling.speculative.draws import MAX_RATE, draw_draft
from sampling.vocab_shard import VocabShard

__all__ = ["DraftMethod", "draw_drafts", "kept_shard"]

DraftMethod: TypeAlias = Literal["greedy", "gumbel", "coupled"]


def draw_drafts(
    logits: Tensor,
    batch: SamplingBatch,
    rows: SamplingRows,
    depth: int,
    method: DraftMethod = "greedy",
    *,
    draft_logits: Tensor | None = None,
    columns: Tensor | None = None,
    shard: VocabShard | None = None,
) -> Tensor:
    """Draw the draft of one depth for each row; on CUDA a graph can hold it.

    Args:
        logits: [n, width], the drafter's as its LM head gives them: float32, bfloat16 or float16,
            rows contiguous; left as they are. Without `columns`, width >= that of the `shard`.
        batch: the rows they belong to, as `VerifiedStep.sampling`: positions are those of the
            step's first draft, whatever the depth.
        rows: the parameters, flushed.
        depth: how many drafts of the step precede this one.
        method: see the module.
        draft_logits: float32 [slots, k, width of `kept_shard`]; q's logits are written at
            [batch.rows[i], depth]. Gumbel needs it, the other methods take None.
        columns: int32 [vocab_size], for a reduced draft vocabulary: the column of `logits` that
            holds each token's logit, -1 for tokens it lacks, which are never drafted. Without a
            shard only.
        shard: the ids of `logits`, those of `rows`: ranks race, each in its own ids, and send 16 to
            32 bytes a row. None: each has all logits, the same ones, and none sends anything.

    Returns:
        int32 [n], always in [0, vocab_size).
    """
    if (method == "gumbel") != (draft_logits is not None):
        raise ValueError("gumbel drafts need draft_logits, others must have none")
    shard = shard or VocabShard.whole(rows.vocab_size)
    draw = draft_kernels.draw_drafts if kernels_run_on(logits.device) else _draw_on_host
    return draw(logits, batch, rows, depth, method, draft_logits, columns, shard)


def kept_shard(rows: SamplingRows) -> VocabShard:
    """The ids of the draft logits that a rank keeps: those of the target's that it verifies."""
    return kernel_shard(rows.shard) if kernels_run_on(rows.device) else rows.shard


def _draw_on_host(
    logits: Tensor,
    batch: SamplingBatch,
    rows: SamplingRows,
    depth: int,
    method: DraftMethod,
    draft_logits: Tensor | None,
    columns: Tensor | None,
    shard: VocabShard,
) -> Tensor:
    """`draw_drafts` in plain torch."""
    values = _spread_columns(logits, shard, columns)
    positions = batch.positions + depth
    if batch.needs.edited:
        own = SamplingBatch(batch.rows, positions, batch.rows_np, batch.needs)
        values = mask_drafts(values, own, rows, shard)
    if method == "greedy":
        return greedy(values, shard).int()
    values = _scaled(values, rows.floats[batch.rows, TEMPERATURE])
    if draft_logits is not None:
        first = rows.shard.first - shard.first
        kept = values[:, first : first + rows.shard.width]
        draft_logits[batch.rows.long(), depth] = kept
    random = torch.from_numpy(np.flatnonzero(rows.flags_np[batch.rows_np] & RANDOM))
    if len(random) == len(values):
        token_ids = torch.empty(len(values), dtype=torch.int64)
    else:
        token_ids = greedy(values, shard)
    if len(random):
        noise = (Purpose.DRAFT, depth) if method == "gumbel" else (Purpose.TARGET, 0)
        at = batch.positions if method == "gumbel" else positions
        key = rows.noise_key(batch.rows[random], at[random])
        token_ids[random] = draw_draft(values[random], key, *noise, shard)
    return token_ids.int()


def _spread_columns(logits: Tensor, shard: VocabShard, columns: Tensor | None) -> Tensor:
    """The drafter's logits of the shard's ids, float32 [n, width]."""
    if columns is None:
        return logits[:, : shard.width].float()
    values = logits[:, columns.clamp(min=0).long()].float()
    return values.masked_fill_(columns < 0, -torch.inf)


def _scaled(values: Tensor, temperature: Tensor) -> Tensor:
    """Divide logits by T in float32; rounding here only changes what q is."""
    rate = torch.where(temperature == 0.0, 1.0, temperature).reciprocal()
    return values * rate.clamp(MIN_SCALE, MAX_RATE).float()[:, None]
