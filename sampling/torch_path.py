"""The native path in plain torch, for the CPU: the same tokens as the kernels, readable.

It may look at the host's mirrors, so each stage runs on the rows that need it only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sampling.batch import Drawn, SamplingBatch
from sampling.edits import TOKEN, UNTIL, WORD_LEN, WORD_START
from sampling.filters import cut
from sampling.logprobs import LogprobsOutput, gather_logprobs
from sampling.noise import Purpose
from sampling.penalties import penalize
from sampling.race import NO_LAST, Cut, greedy, log_sum_exp, race, tile_maxima, tile_stats
from sampling.rows import (
    EDITED,
    FILTERED,
    FREQUENCY,
    LOG_MIN_P,
    MASKED,
    NORMALIZED,
    NUM_EDITS,
    PENALIZED,
    PRESENCE,
    PROCESSED,
    PROMPT_LEN,
    RANDOM,
    REPETITION,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    SamplingRows,
)

FLOAT32_MAX = torch.finfo(torch.float32).max

Indices = npt.NDArray[np.int64]


def draw(
    logits: Tensor, batch: SamplingBatch, rows: SamplingRows, *, scored_ids: Tensor | None = None
) -> Drawn:
    """Run masks, bias, penalties, temperature, filters and the race.

    Args:
        logits: [n, width >= vocab_size], any float dtype and row stride; not written.
        batch: the rows they belong to.
        rows: their parameters, flushed.
        scored_ids: int32 or int64 [n], tokens to report instead of those drawn.
    """
    flags = rows.flags_np[batch.rows_np]
    raw = logits[:, : rows.vocab_size].float()
    maxima = tile_maxima(raw)
    bad = _not_finite(maxima)
    values = raw
    if batch.needs.edited:
        values = process(raw, batch, rows)
        maxima = tile_maxima(values)
        bad |= _not_finite(maxima)
    last = _cuts(values, flags, batch, rows) if batch.needs.filtered else None
    token_ids = _draw(values, maxima, last, flags, batch, rows).int().masked_fill_(bad, 0)
    logprobs = None
    if batch.needs.logprobs:
        reported_ids = token_ids if scored_ids is None else scored_ids
        logprobs = _report(raw, values, last, flags, reported_ids, batch, rows)
    if batch.needs.penalized:
        penalized = torch.from_numpy(flags & PENALIZED != 0)
        rows.counts.add(batch.rows, token_ids, penalized & ~bad)
    return Drawn(token_ids, bad, logprobs)


def process(raw: Tensor, batch: SamplingBatch, rows: SamplingRows) -> Tensor:
    """The logits after masks, bias and penalties, float32 [n, vocab_size], a copy."""
    values = raw.clone()
    flags = rows.flags_np[batch.rows_np]
    for i in np.flatnonzero(flags & (MASKED | EDITED)):
        row = int(batch.rows_np[i])
        if flags[i] & EDITED:
            _edit(values[i], row, int(batch.positions[i]), rows)
        if flags[i] & MASKED:
            bits = rows.edits.allowed[row][:, None] >> torch.arange(32)
            allowed = (bits & 1).flatten()[: rows.vocab_size]
            values[i].masked_fill_(allowed == 0, -torch.inf)
    penalized = np.flatnonzero(flags & PENALIZED)
    if len(penalized):
        index = torch.from_numpy(penalized)
        own = batch.rows[index]
        factors = rows.floats[own].float()
        values[index] = penalize(
            values[index],
            rows.counts.words[own],
            factors[:, REPETITION],
            factors[:, PRESENCE],
            factors[:, FREQUENCY],
        )
    return values


def _edit(values: Tensor, row: int, position: int, rows: SamplingRows) -> None:
    """Apply a row's biases and the bans in force, in place on float32 [vocab_size]."""
    num_edits = int(rows.ints[row, NUM_EDITS])
    num_output = position - int(rows.ints[row, PROMPT_LEN])
    edits = rows.edits.table[row, :num_edits].long()
    tokens = edits[:, TOKEN]
    values.index_add_(0, tokens, rows.edits.bias[row, :num_edits])
    banned = edits[:, UNTIL] > num_output
    for i in edits[:, WORD_LEN].nonzero().flatten().tolist():
        length, start = int(edits[i, WORD_LEN]), int(edits[i, WORD_START])
        prefix = rows.edits.words[row, start : start + length]
        if position >= length:
            banned[i] = torch.equal(rows.history[row, position - length : position], prefix)
    values[tokens[banned]] = -torch.inf


def _not_finite(maxima: Tensor) -> Tensor:
    """Bool [n]: the row holds NaN or +inf, or nothing but -inf."""
    return ~maxima.amax(1).isfinite()  # a NaN among them is the maximum


def _cuts(
    values: Tensor, flags: npt.NDArray[np.int32], batch: SamplingBatch, rows: SamplingRows
) -> Cut:
    """Where each row is cut; rows without filters keep everything."""
    filtered = torch.from_numpy(np.flatnonzero(flags & FILTERED))
    own = batch.rows[filtered]
    floats = rows.floats[own]
    some = cut(
        _select(values, filtered),
        floats[:, TEMPERATURE],
        rows.ints[own, TOP_K],
        floats[:, TOP_P],
        floats[:, LOG_MIN_P],
    )
    cuts = Cut(
        torch.full((len(flags),), -torch.inf),
        torch.full((len(flags),), NO_LAST, dtype=torch.int64),
    )
    cuts.thresholds[filtered], cuts.last_ids[filtered] = some
    return cuts


def _draw(
    values: Tensor,
    maxima: Tensor,
    last: Cut | None,
    flags: npt.NDArray[np.int32],
    batch: SamplingBatch,
    rows: SamplingRows,
) -> Tensor:
    """int64 [n]: greedy rows by argmax, the others by the race."""
    random = torch.from_numpy(np.flatnonzero(flags & RANDOM))
    if len(random) < len(flags):
        token_ids = greedy(values, maxima)
        if not len(random):
            return token_ids
    else:
        token_ids = torch.empty(len(flags), dtype=torch.int64)
    own = batch.rows[random]
    temperature = rows.floats[own, TEMPERATURE]
    logits = _select(values, random)
    own_last = last and Cut(*(column[random] for column in last))
    stats = tile_stats(logits, temperature, own_last)
    key = rows.noise_key(own, batch.positions[random])
    token_ids[random] = race(logits, stats, temperature, key, Purpose.TARGET, own_last)
    return token_ids


def _report(
    raw: Tensor,
    values: Tensor,
    last: Cut | None,
    flags: npt.NDArray[np.int32],
    token_ids: Tensor,
    batch: SamplingBatch,
    rows: SamplingRows,
) -> LogprobsOutput:
    """The logprobs of tokens int [n], each row in its mode."""
    reported, offsets = reported_values(raw, values, last, flags, batch, rows)
    return gather_logprobs(
        reported,
        offsets,
        token_ids,
        num_top=batch.needs.num_top,
        explicit_ids=rows.explicit_ids[batch.rows, : batch.needs.num_explicit],
    )


def reported_values(
    raw: Tensor,
    values: Tensor,
    last: Cut | None,
    flags: npt.NDArray[np.int32],
    batch: SamplingBatch,
    rows: SamplingRows,
) -> tuple[Tensor, Tensor]:
    """Values to report, float32 [n, vocab_size]; what to subtract from them, float64 [n]."""
    ones = torch.ones(len(raw), dtype=torch.float64)
    offsets = log_sum_exp(tile_stats(raw, ones), ones)
    offsets[torch.from_numpy(flags & NORMALIZED == 0)] = 0.0
    if not batch.needs.processed:
        return raw, offsets
    reported = raw.clone()
    for i in np.flatnonzero(flags & PROCESSED):
        temperature = float(rows.floats[batch.rows[i], TEMPERATURE]) or 1.0
        scaled = values[i : i + 1].double()
        if last is not None:
            own_last = Cut(last.thresholds[i : i + 1], last.last_ids[i : i + 1])
            kept = own_last.keeps(values[i : i + 1], torch.arange(rows.vocab_size))
            scaled = scaled.masked_fill(~kept, -torch.inf)
        if flags[i] & NORMALIZED:  # the maximum first, so that a tiny T cannot overflow
            scaled = (scaled - scaled.amax()) / temperature
            offsets[i] = scaled.logsumexp(-1).item()
        else:
            scaled = (scaled / temperature).clamp(max=FLOAT32_MAX)
        reported[i] = scaled[0].float()
    return reported, offsets


def _select(values: Tensor, index: Tensor) -> Tensor:
    """Rows of `values`, without a copy if it is all of them."""
    return values if len(index) == len(values) else values[index]
