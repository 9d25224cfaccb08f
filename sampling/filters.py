"""Min-p, top-k and top-p in plain torch.

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


def cut(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, log_min_p: Tensor
) -> Cut:
    """Where the filters cut each row.

    Args:
        logits: float32 [n, vocab_size].
        temperature, top_p, log_min_p: float64 [n]; neutral at top_p = 1, log_min_p = -inf.
        top_k: int64 [n], 0 keeps all.
    """
    vocab_size = logits.shape[1]
    top_k = torch.where(top_k == 0, vocab_size, top_k.clamp(max=vocab_size))
    ordered = _highest(logits, min(int(top_k.max()) + 1, vocab_size))  # one more shows a tie
    rank = torch.arange(ordered.shape[1])
    gaps = (ordered.double() - ordered[:, :1]) / temperature[:, None]
    kept = (gaps >= log_min_p[:, None]) & (rank < top_k[:, None]) & (ordered > -torch.inf)
    weights = gaps.exp() * kept
    total = weights.cumsum(1)
    before = total - weights
    kept &= (before < (top_p * total[:, -1])[:, None]) | (top_p == 1.0)[:, None]
    num_kept = kept.count_nonzero(1).clamp_(min=1)
    values = ordered.gather(1, num_kept[:, None] - 1).squeeze(1)
    beyond = ordered.gather(1, num_kept[:, None].clamp(max=ordered.shape[1] - 1)).squeeze(1)
    last = torch.full_like(num_kept, NO_LAST)
    for row in ((beyond == values) & (num_kept < ordered.shape[1])).nonzero().flatten().tolist():
        num_higher = (ordered[row] > values[row]).count_nonzero()
        equal = (logits[row] == values[row]).nonzero().flatten()
        last[row] = equal[num_kept[row] - num_higher - 1]
    return Cut(values, last)


def _highest(logits: Tensor, num: int) -> Tensor:
    """The `num` highest values of each row in descending order, float32 [n, num]."""
    if num <= MAX_SELECTED:
        return torch.topk(logits, num).values
    return torch.from_numpy(np.sort(logits.numpy())[:, ::-1][:, :num].copy())
