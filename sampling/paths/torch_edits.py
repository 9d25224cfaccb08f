"""Masks, bias and penalties on the logits in plain torch, for the CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sampling.batch import SamplingBatch
from sampling.edits import TOKEN, UNTIL, WORD_LEN, WORD_START
from sampling.penalties import count_drafts, penalize
from sampling.rows import (
    EDITED,
    FREQUENCY,
    GRAMMAR,
    MASKED,
    NUM_EDITS,
    PENALIZED,
    PRESENCE,
    PROMPT_LEN,
    REPETITION,
    SamplingRows,
)
from sampling.vocab_shard import VocabShard


def process(
    raw: Tensor, batch: SamplingBatch, rows: SamplingRows, *, masked: bool = True
) -> Tensor:
    """A copy of the logits after masks, bias and penalties, float32 [n, width].

    Args:
        raw: float32 [n, width], those of the rows' shard.
        batch, rows: whose logits they are.
        masked: without masks if False.
    """
    values = raw.clone()
    flags = rows.flags_np[batch.rows_np]
    for i in np.flatnonzero(flags & EDITED):
        _bias(values[i], int(batch.rows_np[i]), rows)
    if masked:
        _mask(values, batch, rows)
    penalized = np.flatnonzero(flags & PENALIZED)
    if len(penalized):
        index = torch.from_numpy(penalized)
        own = batch.rows[index]
        factors = rows.floats[own].float()
        words = rows.counts.words[own]
        if batch.depths is not None:
            count_drafts(words, rows.history[own], batch.positions[index], batch.depths[index])
        values[index] = penalize(
            values[index],
            words[:, rows.shard.first : rows.shard.first + rows.shard.width],
            factors[:, REPETITION],
            factors[:, PRESENCE],
            factors[:, FREQUENCY],
        )
    return values


def _mask(values: Tensor, batch: SamplingBatch, rows: SamplingRows) -> None:
    """Apply all masks, in place on float32 [n, width]."""
    flags = rows.flags_np[batch.rows_np]
    for i in np.flatnonzero(flags & (MASKED | EDITED | GRAMMAR)):
        row, position = int(batch.rows_np[i]), int(batch.positions[i])
        if flags[i] & EDITED:
            _ban(values[i], row, position, rows, rows.history[row], rows.shard)
        if flags[i] & MASKED:
            _allow(values[i], rows.edits.allowed[row], rows.shard.first)
        if flags[i] & GRAMMAR and batch.mask_slots is not None:
            slot = int(batch.mask_slots[i])
            if slot >= 0:
                _allow(values[i], rows.grammar_masks[slot], rows.shard.first)


def mask_drafts(raw: Tensor, batch: SamplingBatch, rows: SamplingRows, shard: VocabShard) -> Tensor:
    """A copy of the logits after the masks a draft must obey, float32 [n, width].

    Those masks are the allowed ids, and the bans that do not depend on the last tokens: some of
    the last tokens may be drafts, which are not in the history yet.

    Args:
        raw: float32 [n, width], those of the ids of `shard`.
    """
    values = raw.clone()
    flags = rows.flags_np[batch.rows_np]
    for i in np.flatnonzero(flags & (MASKED | EDITED)):
        row = int(batch.rows_np[i])
        if flags[i] & EDITED:
            _ban(values[i], row, int(batch.positions[i]), rows, None, shard)
        if flags[i] & MASKED:
            _allow(values[i], rows.edits.allowed[row], shard.first)
    return values


def _bias(values: Tensor, row: int, rows: SamplingRows) -> None:
    """Add a row's biases, in place on float32 [width]."""
    num_edits = int(rows.ints[row, NUM_EDITS])
    columns, held = rows.shard.columns(rows.edits.table[row, :num_edits, TOKEN])
    values.index_add_(0, columns[held], rows.edits.bias[row, :num_edits][held])


def _ban(
    values: Tensor,
    row: int,
    position: int,
    rows: SamplingRows,
    history: Tensor | None,
    shard: VocabShard,
) -> None:
    """Mask what is banned at a position, in place on a shard's float32 [width].

    Without a history, bad words of several tokens are left out.
    """
    num_output = position - int(rows.ints[row, PROMPT_LEN])
    edits = rows.edits.table[row, : int(rows.ints[row, NUM_EDITS])].long()
    banned = edits[:, UNTIL] > num_output
    for i in edits[:, WORD_LEN].nonzero().flatten().tolist():
        length, start = int(edits[i, WORD_LEN]), int(edits[i, WORD_START])
        prefix = rows.edits.words[row, start : start + length]
        if history is not None and position >= length:
            banned[i] = torch.equal(history[position - length : position], prefix)
    columns, held = shard.columns(edits[:, TOKEN])
    values[columns[banned & held]] = -torch.inf


def _allow(values: Tensor, bitmap: Tensor, first: int) -> None:
    """Mask all but the ids of a bitmap int32 [words], in place on float32 [width].

    Args:
        first: the id of the first value, a multiple of 32.
    """
    words = bitmap[first // 32 :].numpy().view(np.uint8)
    bits = np.unpackbits(words, count=len(values), bitorder="little")
    values.masked_fill_(torch.from_numpy(bits) == 0, -torch.inf)
