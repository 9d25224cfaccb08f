"""The two-level race in plain torch: exact sampling with float64 noise for few of the tokens.

Sampling from p is an exponential race: argmin E_i / p_i over independent E_i ~ Exp(1) wins i
with probability p_i. The race factorises over tiles of consecutive ids, since the minimum of a
tile's racers is itself an exponential with the tile's mass as rate:

    P(tile t) = mass_t / sum mass,    P(i | t) = w_i / mass_t,    product = w_i / sum mass,

so noise is needed for the tiles and for one tile's tokens only. The masses are float32 sums;
noise, keys and comparisons are float64.

Error of a mass: with weights w_i = exp(-a_i), a_i >= 0 and one a_i = 0, the exponent's rounding
gives at most 4 * 2^-24 * sum(a_i w_i) / sum(w_i) <= 4 * 4.5 * 2^-24 for 1,024 terms, the
exponential 2 * 2^-24 and the sum of 1,024 terms 15 * 2^-24: together below `MASS_ERROR`.
A tile changes its winner only if the two best keys are closer than twice that, so a token can
differ from the float64 race with probability at most 2 * MASS_ERROR a draw (see `noise`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling.noise import LEVEL_TILE, LEVEL_TOKEN, TILE, NoiseKey, Purpose, exponentials, stream
from sampling.vocab_shard import VocabShard

MASS_ERROR = 2.0**-18
LEAST_CUT = 2.0 * MASS_ERROR  # a smaller share of the mass cannot be distinguished from rounding
MAX_SCALE = 3.0e38  # 1 / T in float32; exceeded below T = 3.3e-39, where every gap is infinite
MIN_SCALE = 2.0**-126  # below it float32 reaches 0, and a mask's -inf * 0 is NaN


class Cut(NamedTuple):
    """Where the filters cut each row: they keep higher logits, and equal ones up to an id."""

    thresholds: Tensor  # float32 [n]
    last_ids: Tensor  # int64 [n], int32 on CUDA; `NO_LAST` keeps all that equal the threshold

    def keeps(self, logits: Tensor, token_ids: Tensor) -> Tensor:
        """Whether each token is kept, bool as `logits` [n, ...]; `token_ids` broadcasts to it."""
        shape = (-1,) + (1,) * (logits.dim() - 1)
        thresholds, last = self.thresholds.view(shape), self.last_ids.view(shape)
        kept = logits >= thresholds
        if bool((self.last_ids < NO_LAST).any()):
            kept &= (logits > thresholds) | (token_ids <= last)
        return kept


NO_LAST = 2**31 - 1
"""A cut's token id where every token equal to its value is kept."""


class TileMasses(NamedTuple):
    """The maximum and the mass of each tile, from one pass over the logits."""

    maxima: Tensor  # float32 [n, tiles]
    masses: Tensor  # float32 [n, tiles], sum of exp((logit - maximum) / T)


def tile_maxima(logits: Tensor) -> Tensor:
    """The highest logit of each tile, float32 [n, tiles]; NaN if the tile holds one.

    Args:
        logits: float32 [n, vocab_size].
    """
    return torch.cat([part.amax(-1) for part in _tiles(logits)], dim=1)


def tile_masses(
    logits: Tensor, temperature: Tensor, cut: Cut | None = None, first: int = 0
) -> TileMasses:
    """The maximum of every tile, and the mass of what the cut keeps in it.

    Args:
        logits: float32 [n, width], any row stride; -inf is a mask.
        temperature: float64 [n], positive.
        cut: None keeps every token.
        first: the id of the first logit.
    """
    maxima = tile_maxima(logits)
    shift = torch.where(maxima == -torch.inf, 0.0, maxima)  # a masked tile must not give NaN
    scale = temperature.reciprocal().clamp(MIN_SCALE, MAX_SCALE).float()[:, None, None]
    masses, start = [], 0
    for part in _tiles(logits):
        end = start + part.shape[1]
        gaps = part - shift[:, start:end, None]
        weights = gaps.mul_(scale).exp_()
        if cut is not None:
            first_id = first + start * TILE
            token_ids = torch.arange(first_id, first_id + part[0].numel())
            weights *= cut.keeps(part, token_ids.view(part.shape[1:]))
        masses.append(weights.sum(-1))
        start = end
    return TileMasses(maxima, torch.cat(masses, dim=1))


def all_masses(stats: TileMasses, shard: VocabShard) -> TileMasses:
    """The statistics of all ranks' tiles from those of this rank's."""
    return TileMasses(*shard.all_tiles(torch.stack(stats)))


def log_sum_exp(stats: TileMasses, temperature: Tensor) -> Tensor:
    """log sum exp(logit / T), float64 [n], from the masses of all tiles at that temperature."""
    scaled = stats.maxima.double() / temperature[:, None]
    return (scaled + stats.masses.double().log()).logsumexp(-1)


def race(
    logits: Tensor,
    stats: TileMasses,
    temperature: Tensor,
    key: NoiseKey,
    purpose: Purpose,
    cut: Cut | None = None,
    *,
    shard: VocabShard | None = None,
    highest: Tensor | None = None,
    depth: int = 0,
) -> Tensor:
    """Draw a token from softmax(logits / T) over what the cut keeps, for each row.

    Args:
        logits: float32 [n, width], the shard's; -inf never wins.
        stats: `tile_masses` of them with the same cut.
        temperature: float64 [n], positive.
        key: whose noise.
        purpose: which stream of it.
        cut: None keeps every token.
        shard: which ids they are; None is all of the vocabulary.
        highest: float32 [n], the highest logit of the whole vocabulary; None is that of `stats`.
        depth: how many drafts of the step precede this one, for `Purpose.DRAFT`.

    Returns:
        int64 [n]; meaningless where a row holds NaN, +inf or no finite logit.
    """
    shard = shard or VocabShard.whole(logits.shape[1])
    highest = stats.maxima.amax(1) if highest is None else highest
    gaps = (stats.maxima.double() - highest[:, None].double()) / temperature[:, None]
    weights = gaps.exp_().mul_(stats.masses)
    num_tiles = weights.shape[1]
    noise = exponentials(key, shard.first_tile, num_tiles, stream(purpose, LEVEL_TILE, depth))
    best, tile = noise.div_(weights).min(1)

    column = tile[:, None] * TILE + torch.arange(TILE)
    values = logits.gather(1, column.clamp(max=shard.width - 1))
    gaps = (values.double() - stats.maxima.gather(1, tile[:, None])) / temperature[:, None]
    weights = gaps.exp_().mul_(column < shard.width)
    if cut is not None:
        weights *= cut.keeps(values, column + shard.first)
    first = shard.first + tile * TILE
    noise = exponentials(key, first, TILE, stream(purpose, LEVEL_TOKEN, depth))
    return shard.winner(best, first + noise.div_(weights).argmin(1))


def greedy(logits: Tensor, shard: VocabShard | None = None) -> Tensor:
    """The lowest id among the highest logits, int64 [n]; meaningless where a row holds NaN.

    Args:
        logits: float32 [n, width], the shard's, on the CPU.
        shard: which ids they are; None is all of the vocabulary.
    """
    # numpy's argmax, the first of equals too: 23 us for 32 rows of 8192 where torch's takes 502.
    columns = torch.from_numpy(logits.numpy().argmax(1))
    if shard is None or shard.is_whole:
        return columns
    best = logits.gather(1, columns[:, None])[:, 0]
    return shard.winner(-best.double(), columns + shard.first)


def _tiles(logits: Tensor) -> list[Tensor]:
    """Split contiguous rows into views [n, whole tiles, TILE] and [n, 1, rest]; none is empty."""
    num_whole, rest = divmod(logits.shape[1], TILE)
    whole = num_whole * TILE
    parts = []
    if num_whole:
        parts.append(
            logits.as_strided(
                (len(logits), num_whole, TILE), (logits.stride(0), TILE, 1), logits.storage_offset()
            )
        )
    if rest:
        parts.append(logits[:, whole:].unsqueeze(1))
    return parts
