"""Divides a step's budget of tokens among its rows. No torch."""

from __future__ import annotations

import numpy as np

from engine.arrays import Int64Array
from engine.rows import BoolArray


def token_counts(
    pending: Int64Array, decodes: BoolArray, most_tokens: int, most_prompt: int
) -> Int64Array:
    """The tokens that each row computes, in order of rank: int64 [R].

    A row that decodes computes all of its own or none, one that prefills as many as are left.

    Args:
        pending: int64 [R], tokens that each row could compute.
        decodes: bool [R].
        most_tokens: of all rows. most_prompt: of the rows that prefill.
    """
    if pending.sum() <= min(most_tokens, most_prompt):
        return pending
    left = most_tokens - (np.cumsum(pending) - pending)
    prompt = np.where(decodes, 0, pending)
    left = np.where(decodes, left, np.minimum(left, most_prompt - np.cumsum(prompt) + prompt))
    return np.where(decodes & (left < pending), 0, np.clip(left, 0, pending))
