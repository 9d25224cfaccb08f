"""Where the sum of a row's highest values reaches a target: by histograms over the order of values.

A float32's bits, the lower 31 of them inverted where it is negative, ascend as its value does. The
search narrows a range of such keys by eight bits a round: ranks add up the weights of their values
in each of 256 parts of the range (2 KB a row), and all go on in the part where the sum from above
reaches the target. Weights are integers, so that four rounds find the same value at any number of
ranks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling.vocab_shard import VocabShard

BITS = 8
"""Bits of the order that a round decides."""
NUM_BINS = 1 << BITS


class Reached(NamedTuple):
    """The value at which a row's sum reaches its target."""

    values: Tensor  # float32 [n]
    above: Tensor  # int64 [n], the sum of all that is higher


def search(values: Tensor, weights: Tensor, targets: Tensor, shard: VocabShard) -> Reached:
    """Find the highest value v of each row for which the weights of all values >= v reach a target.

    Args:
        values: float32 [n, width], the shard's; no NaN.
        weights: int64 [n, width], not negative; their sum over all ranks fits 63 bits.
        targets: int64 [n], in [1, that sum].
    """
    keys = order_keys(values)
    prefix = torch.zeros_like(targets)
    above = torch.zeros_like(targets)
    for shift in range(32 - BITS, -1, -BITS):
        parts = keys >> shift
        if shift < 32 - BITS:  # in the first round all are in the range
            weights = weights * (parts >> BITS == prefix[:, None])
        bins = parts & (NUM_BINS - 1)
        sums = weights.new_zeros((len(values), NUM_BINS)).scatter_add_(1, bins, weights)
        from_above = shard.total(sums).flip(1)
        reached = above[:, None] + from_above.cumsum(1)
        first = (reached >= targets[:, None]).int().argmax(1, keepdim=True)
        above = (reached - from_above).gather(1, first).squeeze(1)
        prefix = prefix << BITS | (NUM_BINS - 1 - first.squeeze(1))
    return Reached(values_of(prefix), above)


def order_keys(values: Tensor) -> Tensor:
    """int64 in [0, 2^32) that ascend with float32 values; the two zeros are equal."""
    bits = (values + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0
    return (bits ^ (bits >> 31 & 0x7FFFFFFF)).long() + (1 << 31)


def values_of(keys: Tensor) -> Tensor:
    """The float32 values of their `order_keys`."""
    signed = (keys - (1 << 31)).int()
    return (signed ^ (signed >> 31 & 0x7FFFFFFF)).view(torch.float32)
