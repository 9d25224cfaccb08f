"""The kept logprob: the log of the mass that masks and filters leave of the vocabulary.

    kept = log sum over the tokens left exp(x_i / T) - log sum over the vocabulary exp(x_i / T)

x are the logits after bias and penalties, without masks; T is 1 where the request's is 0. So the
processed logprob of a token left, plus kept, is its logprob without masks and filters:

    (x_i / T - log sum left) + (log sum left - log sum vocabulary)

Error: both logarithms come from the sums of tiles, whose relative error is `race.MASS_ERROR`. That
of the tokens left cancels above, where the same sum is subtracted and added. There remain
MASS_ERROR, the threshold below, and the two roundings to float32 of 2^-24 relative, together below
3 * 2^-18 + 2^-24 (|processed| + |kept|): less than 1e-4 where both are above -700.

A share within `race.LEAST_CUT` of 1 cannot be distinguished from 1, since the two sums may add
the same numbers in different orders, and is reported as exactly 0.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sampling.batch import SamplingBatch
from sampling.paths.torch_edits import process
from sampling.race import LEAST_CUT, Cut, TileMasses, all_masses, tile_masses
from sampling.rows import KEPT, TEMPERATURE, SamplingRows


def kept_logprobs(
    raw: Tensor, values: Tensor, cut: Cut | None, batch: SamplingBatch, rows: SamplingRows
) -> Tensor:
    """Compute the kept logprobs in plain torch, float32 [n], 0 in rows that do not ask for them.

    Args:
        raw, values: float32 [n, width], the shard's logits before and after masks, bias and
            penalties.
        cut: where the filters cut; None keeps all of every row.
        batch, rows: whose logits they are; penalties have not counted the drawn tokens yet.
    """
    kept = torch.zeros(len(raw))
    index = torch.from_numpy(np.flatnonzero(rows.flags_np[batch.rows_np] & KEPT))
    if not len(index):
        return kept
    part = batch.select(index)
    whole = process(raw[index], part, rows, masked=False)
    cut = cut and Cut(*(column[index] for column in cut))
    temperature = rows.floats[part.rows, TEMPERATURE]
    temperature = torch.where(temperature == 0.0, 1.0, temperature)
    stats = tile_masses(values[index], temperature, cut, rows.shard.first)
    left_top, left = _log_mass(all_masses(stats, rows.shard), temperature)
    stats = tile_masses(whole, temperature)
    whole_top, all_mass = _log_mass(all_masses(stats, rows.shard), temperature)
    logprobs = (left_top - whole_top) / temperature + (left - all_mass)
    kept[index] = logprobs.masked_fill_(logprobs > -LEAST_CUT, 0.0).float()
    return kept


def _log_mass(stats: TileMasses, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum M of each row, and log sum exp((logit - M) / T); float64 [n]."""
    top = stats.maxima.amax(1).double()
    gaps = (stats.maxima - top[:, None]) / temperature[:, None]
    return top, (gaps.exp() * stats.masses).sum(1).log()
