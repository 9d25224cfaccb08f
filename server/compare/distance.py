"""Distances of two lists of logprobs, and what explains them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.arrays import Float64Array
from server.audit.verdict import allowed_noise
from server.compare.records import TrainerSequence

SHIFT_GAIN = 10.0
"""Values count as shifted where they fit so many times better with one position between."""


class Compared(NamedTuple):
    """A sequence: its tokens and both lists of values, without positions that the trainer lacks.

    Attributes:
        positions: of each value in the sequence.
        repeated: the server's values where other sequences were computed beside.
    """

    number: int
    token_ids: list[int]
    positions: list[int]
    trainer: Float64Array
    server: Float64Array
    repeated: Float64Array

    @property
    def gaps(self) -> Float64Array:
        """Trainer minus server, in nats."""
        return self.trainer - self.server


def compared(
    number: int, sequence: TrainerSequence, server: Float64Array, repeated: Float64Array
) -> Compared:
    """The positions of a sequence that both have."""
    there = [i for i, value in enumerate(sequence.logprobs) if value is not None]
    positions = [sequence.first + i for i in there]
    trainer = np.array([sequence.logprobs[i] for i in there], dtype=np.float64)
    token_ids = [sequence.token_ids[position] for position in positions]
    return Compared(number, token_ids, positions, trainer, server[there], repeated[there])


class Distance(NamedTuple):
    """How far two lists of values are apart, in nats; `ratio` is mean |exp(trainer - server) - 1|.

    Attributes:
        bias: mean of trainer minus server.
        kl: mean of exp(d) - 1 - d with d trainer minus server, an estimate of KL(server || trainer)
            over tokens that the server drew that is never negative (Schulman's k3).
    """

    num_tokens: int
    mean: float
    worst: float
    bias: float
    ratio: float
    kl: float


def distance(gaps: Float64Array) -> Distance:
    """The distance of values whose differences these are."""
    if not len(gaps):
        return Distance(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    size, grown = np.abs(gaps), np.expm1(gaps)
    return Distance(
        num_tokens=len(gaps),
        mean=float(size.mean()),
        worst=float(size.max()),
        bias=float(gaps.mean()),
        ratio=float(np.abs(grown).mean()),
        kl=float((grown - gaps).mean()),
    )


class Explanation(NamedTuple):
    """A cause, and the gap of one logprob that it explains, in nats."""

    cause: str
    nats: float


def explanations(about: dict[str, Any], all_compared: Sequence[Compared]) -> list[Explanation]:
    """What is known to move the server's logprobs.

    Args:
        about: of `/server_info`.
    """
    dtype = str(about.get("dtype") or "an unknown dtype")
    found = [Explanation(f"rounding of {dtype}", 2.0 * allowed_noise(None, dtype))]
    batch = max((float(np.abs(c.server - c.repeated).max()) for c in all_compared), default=0.0)
    found.append(Explanation("other sequences computed beside (batch)", batch))
    quantized = about.get("quantization")
    if isinstance(quantized, dict) and quantized.get("max_logprob_gap") is not None:
        words = f"format of the weights ({quantized.get('scheme')})"
        found.append(Explanation(words, float(quantized["max_logprob_gap"])))
    return found


def is_shifted(all_compared: Sequence[Compared]) -> int:
    """By how many positions the trainer's values fit far better; 0 where they do not."""
    gaps = {shift: _mean_gap(all_compared, shift) for shift in (-1, 0, 1)}
    best = min(gaps, key=lambda shift: gaps[shift])
    return best if best and gaps[best] * SHIFT_GAIN < gaps[0] else 0


def _mean_gap(all_compared: Sequence[Compared], shift: int) -> float:
    """Mean gap with the trainer's values `shift` positions later; of lists of at least three."""
    total, count = 0.0, 0
    for each in all_compared:
        if len(each.trainer) < 3:
            continue
        ours, theirs = each.server[1:-1], each.trainer[1 + shift : len(each.trainer) - 1 + shift]
        total, count = total + float(np.abs(ours - theirs).sum()), count + len(ours)
    return total / count if count else float("inf")
