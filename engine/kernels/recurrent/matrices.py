"""The inputs and the memory of linear recurrences."""

from __future__ import annotations

from typing import NamedTuple

import torch

CHUNK = 16
"""The positions of a chunk."""


class Rule(NamedTuple):
    """Which recurrence.

    Attributes:
        delta: the delta rule, with queries and keys of unit length; else the state space.
        scale: multiplies what is read.
        by_token: prefilled rows are computed token by token too, so that a token's bits do not
            depend on whether it was prefilled or decoded.
    """

    delta: bool
    scale: float
    by_token: bool = False


class TokenInputs(NamedTuple):
    """The inputs of T tokens; the last dimensions have unit stride.

    Attributes:
        q, k: [T, Hk, K]; a key head serves H / Hk heads one after another.
        v: [T, H, V].
        decay: float32 [T, H] or [T, H, K], contiguous; logarithms, at most 0.
        beta: float32 [T, H], contiguous.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor


class Drafted(NamedTuple):
    """Inputs of the tokens that a slot's matrix lacks, by position modulo D = 2 * drafts + 1.

    A step replays at most k positions before its first and writes the k after it, so those that it
    reads and those that it writes are never one.

    Attributes:
        k: [num_slots, D, Hk, K]. v: [num_slots, D, H, V].
        decay: float32 [num_slots, D, H] or [num_slots, D, H, K]. beta: float32 [num_slots, D, H].
    """

    k: torch.Tensor
    v: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor


class Matrices(NamedTuple):
    """What a layer keeps: matrices float32 [num_slots, H, V, K], and drafts of live slots."""

    matrix: torch.Tensor
    drafted: Drafted


def drafted_length(num_drafts: int) -> int:
    """The positions of `Drafted`."""
    return 2 * num_drafts + 1
