"""The filters min-p, top-k and top-p in plain torch, for the CPU.

The three keep a prefix of one total order, higher logit first and lower id among equals, so
together they keep the shortest of three prefixes: the tokens up to a cut (value, id).

    min-p  keeps logits >= max + T log(min_p)          (p >= min_p max p, without dividing)
    top-k  keeps the first k
    top-p  keeps the shortest prefix of what both left whose mass reaches p of that mass

Dividing by T > 0 does not change the order; it is left out here so that rounding cannot make
new ties.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sampling.race import NO_LAST, Cut

MAX_SELECTED = 1024  # beyond it a sort of the values is faster than a selection
FEW = 64  # values looked at first where top-k does not say how many can be kept


def cut(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, log_min_p: Tensor
) -> Cut:
    """Find where the filters cut each row.

    Args:
        logits: float32 [n, vocab_size].
        temperature, top_p, log_min_p: float64 [n]; neutral at top_p = 1, log_min_p = -inf.
        top_k: int64 [n], 0 keeps all.
    """
    vocab_size = logits.shape[1]
    top_k = torch.where(top_k == 0, vocab_size, top_k.clamp(max=vocab_size))
    limited = top_k < vocab_size
    few = max(FEW, int(torch.where(limited, top_k, 0).max()) + 1)  # one more shows a tie
    if few >= vocab_size:
        few = vocab_size
    beyond = ~limited & (few < vocab_size)  # rows whose top-p and min-p may keep more
    mass = torch.full_like(temperature, torch.nan)
    if beyond.any():
        mass[beyond] = _mass(logits[beyond], temperature[beyond], log_min_p[beyond])
    ordered = _highest(logits, few)
    cuts, num_kept = _cut(logits, ordered, temperature, top_k, top_p, log_min_p, mass)
    undecided = (beyond & (num_kept == few)).nonzero().flatten()
    if len(undecided):
        some = logits[undecided]
        rest, _ = _cut(
            some,
            _highest(some, vocab_size),
            temperature[undecided],
            top_k[undecided],
            top_p[undecided],
            log_min_p[undecided],
            torch.full_like(mass[undecided], torch.nan),
        )
        cuts.thresholds[undecided], cuts.last_ids[undecided] = rest
    return cuts


def _mass(logits: Tensor, temperature: Tensor, log_min_p: Tensor) -> Tensor:
    """Sum exp((logit - maximum) / T) over what min-p keeps, float64 [n]."""
    gaps = (logits - logits.amax(1, keepdim=True)).double().div_(temperature[:, None])
    if (log_min_p > -torch.inf).any():
        gaps.masked_fill_(gaps < log_min_p[:, None], -torch.inf)
    return gaps.exp_().sum(1)


def _cut(
    logits: Tensor,
    ordered: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    log_min_p: Tensor,
    mass: Tensor,
) -> tuple[Cut, Tensor]:
    """Find the cuts among the highest values, and how many of these they keep.

    Args:
        ordered: float32 [n, m], the m highest values of each row in descending order.
        mass: float64 [n], the mass of all that min-p and top-k keep; NaN where `ordered` holds
            all of it.
    """
    rank = torch.arange(ordered.shape[1])
    gaps = (ordered - ordered[:, :1]).double() / temperature[:, None]
    kept = (gaps >= log_min_p[:, None]) & (rank < top_k[:, None]) & (ordered > -torch.inf)
    weights = gaps.exp() * kept
    total = weights.cumsum(1)
    target = top_p * torch.where(mass.isnan(), total[:, -1], mass)
    kept &= (total - weights < target[:, None]) | (top_p == 1.0)[:, None]
    num_kept = kept.count_nonzero(1).clamp_(min=1)
    values = ordered.gather(1, num_kept[:, None] - 1).squeeze(1)
    following = ordered.gather(1, num_kept[:, None].clamp(max=ordered.shape[1] - 1)).squeeze(1)
    tied = (following == values) & (num_kept < ordered.shape[1])
    last = torch.full_like(num_kept, NO_LAST)
    for row in tied.nonzero().flatten().tolist():
        num_higher = (ordered[row] > values[row]).count_nonzero()
        equal = (logits[row] == values[row]).nonzero().flatten()
        last[row] = equal[num_kept[row] - num_higher - 1]
    return Cut(values, last), num_kept


def _highest(logits: Tensor, num: int) -> Tensor:
    """The `num` highest values of each row in descending order, float32 [n, num]."""
    if num <= MAX_SELECTED:
        return torch.topk(logits, num).values
    return torch.from_numpy(np.sort(logits.numpy())[:, ::-1][:, :num].copy())
