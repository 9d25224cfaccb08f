"""The native path in plain torch, for the CPU: it draws the same tokens as the kernels.

It may look at the host's mirrors, so each stage runs only on the rows that need it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sampling.batch import (
    NOTHING_ALLOWED,
    UNUSABLE_LOGITS,
    LogprobsOutput,
    SamplerOutput,
    SamplingBatch,
)
from sampling.filters.plain import cut
from sampling.noise import TILE, Purpose
from sampling.paths.kept_logprobs import kept_logprobs
from sampling.paths.logprobs import gather_logprobs
from sampling.paths.torch_edits import process
from sampling.race import (
    NO_LAST,
    Cut,
    all_masses,
    greedy,
    log_sum_exp,
    race,
    tile_masses,
)
from sampling.rows import (
    FILTERED,
    LOG_MIN_P,
    NORMALIZED,
    PENALIZED,
    PROCESSED,
    RANDOM,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    SamplingRows,
)
from sampling.vocab_shard import VocabShard

FLOAT32_MAX = torch.finfo(torch.float32).max

Indices = npt.NDArray[np.int64]


class Processed(NamedTuple):
    """Logit rows of a shard that are ready for the draw: processed, and cut by their filters."""

    raw: Tensor  # float32 [n, width]
    values: Tensor  # float32 [n, width], after masks, bias and penalties
    highest: Tensor  # float32 [n], of the values of all shards
    cut: Cut | None  # where the filters cut; None keeps all of every row
    bad: Tensor  # uint8 [n], as in `SamplerOutput`

    def select(self, index: Tensor) -> Processed:
        """The rows `index` int64 [m], without a copy if it is all of them."""
        if len(index) == len(self.raw):
            return self
        values = self.values[index]
        raw = values if self.values is self.raw else self.raw[index]
        cut = self.cut and Cut(*(column[index] for column in self.cut))
        return Processed(raw, values, self.highest[index], cut, self.bad[index])


def draw(
    logits: Tensor,
    batch: SamplingBatch,
    rows: SamplingRows,
    *,
    reported_ids: Tensor | None = None,
    explicit_ids: Tensor | None = None,
) -> SamplerOutput:
    """Draw one token a logit row: masks, bias, penalties, temperature, filters and the race.

    Args:
        logits: [n, width] or wider, those of the rows' shard; any float dtype and row stride; not
            written.
        batch: the rows they belong to.
        rows: their parameters, flushed.
        reported_ids: int32 or int64 [n], tokens to report instead of those drawn.
        explicit_ids: int32 or int64 [n, J], ids to report instead of the rows' own.
    """
    processed = prepare(logits, batch, rows)
    token_ids = draw_target(processed, batch, rows)
    logprobs = None
    if batch.needs.logprobs:
        reported_ids = token_ids if reported_ids is None else reported_ids
        logprobs = report(processed, reported_ids, batch, rows, explicit_ids)
    if batch.needs.penalized:
        rows.counts.add(batch.rows, token_ids, _penalized(batch, rows) & (processed.bad == 0))
    return SamplerOutput(token_ids, processed.bad, logprobs)


def prepare(logits: Tensor, batch: SamplingBatch, rows: SamplingRows) -> Processed:
    """Process the logits and find their cuts; arguments as for `draw`."""
    shard = rows.shard
    raw = logits[:, : shard.width].float()
    values, tops = raw, [raw.amax(1)]
    if batch.needs.edited:
        values = process(raw, batch, rows)
        tops.append(values.amax(1))
    if not shard.is_whole:
        tops = list(shard.highest(torch.stack(tops)))
    bad = _bad(tops[0])
    if batch.needs.edited:
        masked_out = (bad == 0) & (tops[1] == -torch.inf)
        bad = torch.maximum(bad, _bad(tops[1])).masked_fill_(masked_out, NOTHING_ALLOWED)
    last = _cuts(values, batch, rows) if batch.needs.filtered else None
    return Processed(raw, values, tops[-1], last, bad)


def _bad(highest: Tensor) -> Tensor:
    """`UNUSABLE_LOGITS` where a row holds NaN or +inf, or nothing but -inf, else 0; uint8 [n]."""
    usable = np.isfinite(highest.numpy())  # a NaN among them is the highest
    return torch.from_numpy(~usable * np.uint8(UNUSABLE_LOGITS))


def _cuts(values: Tensor, batch: SamplingBatch, rows: SamplingRows) -> Cut:
    """Find where each row is cut; rows without filters keep everything."""
    cuts = Cut(
        torch.full((len(values),), -torch.inf),
        torch.full((len(values),), NO_LAST, dtype=torch.int64),
    )
    filtered = torch.from_numpy(np.flatnonzero(rows.flags_np[batch.rows_np] & FILTERED))
    if len(filtered):
        own = batch.rows[filtered]
        floats = rows.floats[own]
        some = cut(
            _select(values, filtered),
            floats[:, TEMPERATURE],
            rows.ints[own, TOP_K],
            floats[:, TOP_P],
            floats[:, LOG_MIN_P],
            rows.shard,
        )
        cuts.thresholds[filtered], cuts.last_ids[filtered] = some
    return cuts


def draw_target(processed: Processed, batch: SamplingBatch, rows: SamplingRows) -> Tensor:
    """Draw the target's tokens: greedy rows by argmax, the others by the race.

    Returns int32 [n], 0 where bad.
    """
    flags = rows.flags_np[batch.rows_np]
    random = torch.from_numpy(np.flatnonzero(flags & RANDOM))
    if len(random) < len(flags):
        token_ids = greedy(processed.values, rows.shard)
    else:
        token_ids = torch.empty(len(flags), dtype=torch.int64)
    if len(random):
        own = batch.rows[random]
        temperature = rows.floats[own, TEMPERATURE]
        chosen = processed.select(random)
        stats = tile_masses(chosen.values, temperature, chosen.cut, rows.shard.first)
        token_ids[random] = race(
            chosen.values,
            stats,
            temperature,
            rows.noise_key(own, batch.positions[random]),
            Purpose.TARGET,
            chosen.cut,
            shard=rows.shard,
            highest=chosen.highest,
        )
    return token_ids.int().masked_fill_(processed.bad != 0, 0)


def report(
    processed: Processed,
    token_ids: Tensor,
    batch: SamplingBatch,
    rows: SamplingRows,
    explicit_ids: Tensor | None = None,
) -> LogprobsOutput:
    """The logprobs of the tokens int32 or int64 [n], each row in its mode.

    `explicit_ids` are reported in place of the rows' own.
    """
    if explicit_ids is None:
        explicit_ids = rows.explicit_ids[batch.rows, : batch.needs.num_explicit]
    raw, values, _, last, _ = processed
    reported, offsets = reported_values(processed, batch, rows)
    logprobs = gather_logprobs(
        reported,
        offsets,
        token_ids,
        num_top=batch.needs.num_top,
        explicit_ids=explicit_ids,
        shard=rows.shard,
    )
    if not batch.needs.kept:
        return logprobs
    return logprobs._replace(kept=kept_logprobs(raw, values, last, batch, rows))


def _penalized(batch: SamplingBatch, rows: SamplingRows) -> Tensor:
    """Whether each logit row is penalised, bool [n]."""
    return torch.from_numpy(rows.flags_np[batch.rows_np] & PENALIZED != 0)


def reported_values(
    processed: Processed, batch: SamplingBatch, rows: SamplingRows
) -> tuple[Tensor, Tensor]:
    """The values that rows report and their offsets.

    Returns float32 [n, width], and what is subtracted from it, float64 [n].
    """
    raw, shard, flags = processed.raw, rows.shard, rows.flags_np[batch.rows_np]
    ones = torch.ones(len(raw), dtype=torch.float64)
    offsets = log_sum_exp(all_masses(tile_masses(raw, ones), shard), ones)
    offsets[torch.from_numpy(flags & NORMALIZED == 0)] = 0.0
    if not batch.needs.processed:
        return raw, offsets
    reported = raw.clone()
    for i in np.flatnonzero(flags & PROCESSED):
        temperature = float(rows.floats[batch.rows[i], TEMPERATURE]) or 1.0
        scaled = processed.values[i].double()
        if processed.cut is not None:
            cut = Cut(*(column[i : i + 1] for column in processed.cut))
            kept = cut.keeps(processed.values[i : i + 1], shard.token_ids())[0]
            scaled = scaled.masked_fill(~kept, -torch.inf)
        if flags[i] & NORMALIZED:  # the maximum first, so that a tiny T cannot overflow
            scaled = (scaled - processed.highest[i].double()) / temperature
            offsets[i] = _log_mass(scaled, shard)
        else:
            scaled = (scaled / temperature).clamp(max=FLOAT32_MAX)
        reported[i] = scaled.float()
    return reported, offsets


def _log_mass(scaled: Tensor, shard: VocabShard) -> float:
    """log sum exp of float64 [width], at most 0, of all shards: tile by tile, in their order."""
    tiles = F.pad(scaled, (0, -len(scaled) % TILE), value=-torch.inf).view(-1, TILE)
    return float(shard.all_tiles(tiles.exp_().sum(1)).sum().log())


def _select(values: Tensor, index: Tensor) -> Tensor:
    """Rows of `values`, without a copy if it is all of them."""
    return values if len(index) == len(values) else values[index]
