"""The filters min-p, top-k and top-p in plain torch, for the CPU.

The three keep a prefix of one total order, higher logit first and lower id among equals, so
together they keep the shortest of three prefixes: the tokens up to a cut (value, id).

    min-p  keeps logits >= max + T log(min_p)          (p >= min_p max p, without dividing)
    top-k  keeps the first k
    top-p  keeps the shortest prefix of what both left whose mass reaches p of that mass

Dividing by T > 0 does not change the order; it is left out here so that rounding cannot make
new ties.

Masses are sums of integers, floor(U exp((logit - max) / T)), which no order changes: however many
ranks divide the vocabulary among them (`sampling.vocab_shard`), the cut is the same. U is the power
of two with which the sum of a whole vocabulary fits 62 bits, 2^44 for 2^18 tokens; rounding down
leaves out less than 1 / U of the highest token's mass a token.

Most rows are decided by the highest few values of each rank, merged. The others' cuts are found by
`sampling.filters.histograms`, eight bits of the order of values at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sampling.filters.histograms import search
from sampling.race import NO_LAST, Cut
from sampling.vocab_shard import VocabShard

SUM_BITS = 62
"""Of the sum of a vocabulary of equal logits."""
MAX_SELECTED = 1024  # beyond it a sort of the values is faster than a selection
FEW = 64  # values looked at first where top-k does not say how many can be kept
MOST = 129  # that each rank sends to others; one more than a top-k that is decided by them


class _Filters(NamedTuple):
    """The filters of n rows."""

    temperature: Tensor  # float64 [n]
    top_k: Tensor  # int64 [n], at most the vocabulary
    top_p: Tensor  # float64 [n]
    log_min_p: Tensor  # float64 [n]
    highest: Tensor  # float32 [n], of each row
    unit: float  # the mass of a row's highest token

    def at(self, index: Tensor) -> _Filters:
        return _Filters(
            self.temperature[index],
            self.top_k[index],
            self.top_p[index],
            self.log_min_p[index],
            self.highest[index],
            self.unit,
        )

    def units(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The masses of values float32 [n, m], int64 and 0 below min-p; and what min-p keeps."""
        gaps = (values - self.highest[:, None]).double().div_(self.temperature[:, None])
        kept = (gaps >= self.log_min_p[:, None]) & (values > -torch.inf)
        return torch.where(kept, gaps.exp_().mul_(self.unit), 0.0).long(), kept

    def target(self, mass: Tensor) -> Tensor:
        """The mass that top-p must reach of `mass` int64 [n], at least 1 where that is."""
        return torch.minimum((self.top_p * mass).ceil_().long(), mass)


class _Prefix(NamedTuple):
    """The tokens that n rows keep: all above a value, and some of those equal to it."""

    thresholds: Tensor  # float32 [n]
    num_equal: Tensor  # int64 [n], kept ones, in the order of ids


def cut(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    log_min_p: Tensor,
    shard: VocabShard | None = None,
) -> Cut:
    """Find where the filters cut each row.

    Args:
        logits: float32 [n, width], the shard's.
        temperature, top_p, log_min_p: float64 [n]; neutral at top_p = 1, log_min_p = -inf.
        top_k: int64 [n], 0 keeps all.
        shard: which ids they are; None is all of the vocabulary.
    """
    shard = shard or VocabShard.whole(logits.shape[1])
    top_k = torch.where(top_k == 0, shard.vocab_size, top_k.clamp(max=shard.vocab_size))
    highest = shard.highest(logits.amax(1))
    unit = 2.0 ** (SUM_BITS - shard.vocab_size.bit_length())
    filters = _Filters(temperature, top_k, top_p, log_min_p, highest, unit)
    prefix, decided, tied = _among_highest(logits, filters, shard)
    rest = (~decided).nonzero().flatten()
    if len(rest):
        found = _among_all(logits[rest], filters.at(rest), shard)
        for column, part in zip(prefix, found, strict=True):
            column[rest] = part
    last = torch.full_like(prefix.num_equal, NO_LAST)
    tied = (tied | ~decided).nonzero().flatten()
    if len(tied):
        last[tied] = _last_ids(logits[tied], _Prefix(*(x[tied] for x in prefix)), shard)
    return Cut(prefix.thresholds, last)


def _among_highest(
    logits: Tensor, filters: _Filters, shard: VocabShard
) -> tuple[_Prefix, Tensor, Tensor]:
    """Find cuts among the highest values of all ranks.

    A rank's values that are not among those are at most its least one there: a threshold above
    those of all ranks is above every value that is left out.

    Returns:
        The cuts; which rows they are right for, bool [n]; and in which of these they keep a part of
        equals, bool [n].
    """
    small_k = torch.where(filters.top_k < MOST, filters.top_k, 0)
    few = min(max(FEW, int(small_k.max()) + 1), shard.vocab_size)
    own = _highest(logits, min(few, shard.width))
    own = F.pad(own, (0, few - own.shape[1]), value=-torch.inf)
    lists = shard.exchange.all_gather(own)  # [ranks, n, few]
    values = lists.transpose(0, 1).flatten(1).sort(1, descending=True).values
    cropped = [rank for rank, width in enumerate(shard.widths) if width > few]
    left_out = values.new_full((len(values),), -torch.inf)
    if cropped:
        left_out = lists[cropped, :, -1].amax(0)

    units, kept = filters.units(values)
    kept &= torch.arange(values.shape[1]) < filters.top_k[:, None]
    units *= kept
    mass = units.sum(1)
    beyond = filters.top_k > few  # more may be kept than are listed
    if beyond.any():
        mass[beyond] = shard.total(filters.at(beyond).units(logits[beyond])[0].sum(1))
    before = units.cumsum(1) - units
    kept &= (before < filters.target(mass)[:, None]) | (filters.top_p == 1.0)[:, None]
    num_kept = kept.count_nonzero(1).clamp_(min=1)
    thresholds = values.gather(1, num_kept[:, None] - 1).squeeze(1)
    num_equal = num_kept - (values > thresholds[:, None]).count_nonzero(1)
    tied = (values == thresholds[:, None]).count_nonzero(1) > num_equal
    decided = thresholds > left_out
    # The mass of what a large top-k leaves is not known here.
    decided &= ~(beyond & (filters.top_k < shard.vocab_size) & (filters.top_p < 1.0))
    return _Prefix(thresholds, num_equal), decided, tied


def _among_all(logits: Tensor, filters: _Filters, shard: VocabShard) -> _Prefix:
    """Find cuts among all values, by sums over ranges of them."""
    units, kept = filters.units(logits)
    everything = torch.full_like(filters.highest, -torch.inf), torch.zeros_like(filters.top_k)
    prefix = _Prefix(*everything)
    mass = shard.total(units.sum(1))
    if (filters.top_k < shard.vocab_size).any() or (filters.log_min_p > -torch.inf).any():
        prefix, mass = _without_top_p(logits, units, kept, filters, shard)
    target = filters.target(mass)
    reached = search(logits, units, target, shard)
    units_at, _ = filters.units(reached.values[:, None])
    num_equal = -(-(target - reached.above) // units_at[:, 0].clamp(min=1))
    shorter = (filters.top_p < 1.0) & (
        (reached.values > prefix.thresholds) | (num_equal < prefix.num_equal)
    )
    return _Prefix(
        torch.where(shorter, reached.values, prefix.thresholds),
        torch.where(shorter, num_equal, prefix.num_equal),
    )


def _without_top_p(
    logits: Tensor, units: Tensor, kept: Tensor, filters: _Filters, shard: VocabShard
) -> tuple[_Prefix, Tensor]:
    """The cuts of min-p and top-k among all values, and the mass int64 [n] of what they keep."""
    counts = kept.long()
    num_kept = torch.minimum(shard.total(counts.sum(1)), filters.top_k)
    last = search(logits, counts, num_kept, shard)
    prefix = _Prefix(last.values, num_kept - last.above)
    units_at, _ = filters.units(last.values[:, None])
    above = (units * (logits > last.values[:, None])).sum(1)
    return prefix, shard.total(above) + units_at[:, 0] * prefix.num_equal


def _last_ids(logits: Tensor, prefix: _Prefix, shard: VocabShard) -> Tensor:
    """The last id of this rank that is kept among those equal to the threshold, int64 [n].

    It is `NO_LAST` where all are kept, and -1 where none is. Ranks ascend by id, so each keeps
    what those before it leave of the number to keep.
    """
    equal = (logits == prefix.thresholds[:, None]).count_nonzero(1)
    all_equal = shard.exchange.all_gather(equal)  # [ranks, n]
    rank = shard.exchange.rank
    quota = prefix.num_equal - all_equal[:rank].sum(0)
    last = torch.where(quota >= equal, NO_LAST, -1)
    last[all_equal.sum(0) == prefix.num_equal] = NO_LAST
    for row in ((quota > 0) & (quota < equal)).nonzero().flatten().tolist():
        places = (logits[row] == prefix.thresholds[row]).nonzero().flatten()
        last[row] = places[quota[row] - 1] + shard.first
    return last


def _highest(logits: Tensor, num: int) -> Tensor:
    """The `num` highest values of each row in descending order, float32 [n, num]."""
    if num <= MAX_SELECTED:
        return torch.topk(logits, num).values
    return torch.from_numpy(np.sort(logits.numpy())[:, ::-1][:, :num].copy())
