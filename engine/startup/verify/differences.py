"""Compares the bits that requests got in two ways to serve them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from engine.arrays import Float32Array, Int32Array
from sampling.selftest.checks import Result


class PositionValues(NamedTuple):
    """What a request's positions have: tokens [T], log-probabilities [T, J]."""

    tokens: Int32Array
    logprobs: Float32Array


@dataclass
class ServedBits:
    """What the requests of a way got, by handle."""

    replies: dict[int, PositionValues] = field(default_factory=dict)
    prompts: dict[int, Float32Array] = field(default_factory=dict)


class BitDifference(NamedTuple):
    """How many of the positions differ, and the first that does: (handle, position)."""

    num_differing: int
    num_positions: int
    place: tuple[int, int] | None


def first_differing(alone: ServedBits, served: ServedBits) -> BitDifference:
    """How many positions have other bits than served alone."""
    num_positions, differing = 0, []
    for handle, wanted in alone.replies.items():
        got = served.replies[handle]
        num_positions += len(wanted.tokens)
        first = len(alone.prompts.get(handle, ())) + 1
        differing += [(handle, first + i) for i in _differing(wanted.logprobs, got.logprobs)]
        if not np.array_equal(wanted.tokens, got.tokens):
            differing.append((handle, first))
        if handle in served.prompts and handle in alone.prompts:
            num_positions += len(alone.prompts[handle])
            found = _differing(alone.prompts[handle], served.prompts[handle])
            differing += [(handle, 1 + i) for i in found]
    place = min(differing, key=lambda place: place[1]) if differing else None
    return BitDifference(len(differing), num_positions, place)


def result_of(name: str, difference: BitDifference, where: str | None) -> Result:
    """The line of a way."""
    words = f"{difference.num_differing} of {difference.num_positions} positions differ"
    path = "bits as alone"
    if difference.place is not None:
        handle, position = difference.place
        path = f"first: request {handle}, position {position}, {where}"
    return Result(f"invariance: {name}", path, words, "0", 0.0, difference.place is None)


def _differing(wanted: Float32Array, got: Float32Array) -> list[int]:
    """The positions whose values differ in a bit."""
    if wanted.shape != got.shape:
        return list(range(max(len(wanted), len(got), 1)))
    bits = wanted.view(np.uint32) != got.view(np.uint32)
    return np.flatnonzero(bits.any(axis=1)).tolist()
