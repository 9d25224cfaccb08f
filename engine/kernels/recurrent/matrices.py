"""The inputs and the memory of linear recurrences."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

CHUNK = 16
"""The positions of a chunk."""


class Numbers(NamedTuple):
    """What a kernel is told of a rule as it runs."""

    scale: float
    beta_scale: float
    least_step: float
    most_step: float


class Rule(NamedTuple):
    """Which recurrence.

    Attributes:
        delta: the delta rule, with queries and keys of unit length; else the state space.
        scale: multiplies what is read.
        by_token: prefilled rows are computed token by token too, so that a token's bits do not
            depend on whether it was prefilled or decoded.
        beta_scale: of the delta rule; 2 lets a step turn a state's sign around.
        step_limits: of the state space's step sizes.
    """

    delta: bool
    scale: float
    by_token: bool = False
    beta_scale: float = 1.0
    step_limits: tuple[float, float] = (0.0, math.inf)

    @property
    def numbers(self) -> Numbers:
        """Those of a kernel."""
        return Numbers(self.scale, self.beta_scale, *self.step_limits)


class HeadWeights(NamedTuple):
    """What a layer has learned of its heads, float32.

    Attributes:
        a_log: [H]. dt_bias: [H], or [H, K] where each channel of k has its decay; see `gates`.
        skip: [H], the state space's factor of v itself; None of a delta rule.
    """

    a_log: torch.Tensor
    dt_bias: torch.Tensor
    skip: torch.Tensor | None = None


class TokenInputs(NamedTuple):
    """The inputs of T tokens; all but the first dimension lie one after another.

    Attributes:
        q, k: [T, Hk, K]; a key head serves H / Hk heads one after another.
        v: [T, H, V].
        a: [T, H] or, of a decay a channel, [T, H, K]: what decays follow from, see `gates`.
        b: [T, H]: what step sizes follow from; of the state space a itself.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor


class Drafted(NamedTuple):
    """Inputs of the tokens that a slot's matrix lacks, by position modulo D = 2 * drafts + 1.

    A step replays at most k positions before its first and writes the k after it, so those that it
    reads and those that it writes are never one.

    Attributes:
        k: [num_slots, D, Hk, K]. v: [num_slots, D, H, V].
        decay: float32 [num_slots, D, H] or [num_slots, D, H, K], a logarithm, at most 0.
        beta: float32 [num_slots, D, H].
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
