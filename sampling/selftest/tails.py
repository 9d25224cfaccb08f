"""Distributions whose rare tokens coarse noise seldom or never draws, and the draws that they win.

Noise of b bits gives no exponential below about 2^-b, so where one token leads by a gap g well
above b log 2 (16.6 for 24 bits, 22.9 for 33) nothing else can win; here a tail wins with
probability (tails) e^-g a draw. The cases: many tails over all tiles, tails in the leading token's
own tile (the race inside a tile decides), one tail in each other tile (the race of the tiles
decides), and many tails so far below that 32-bit noise loses most of them too.

`wins` lists every draw of a fixed seed that a tail wins, as the noise contract determines it. The
list comes from benchmarks/tail_search.c, which shares nothing with this package but the contract:
a path that gives these tokens at these positions has all of its tail, on whatever device.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sampling.noise import TILE, Purpose
from sampling.selftest.tail_wins import ACCEPTED, REFUSED, SEED, WINS_BY_STREAM

__all__ = ["ACCEPTED", "ACCEPT_GAP", "CASES", "REFUSED", "SEED", "TailCase", "wins"]

ACCEPT_GAP = 19.0
"""How far the second of two tokens lies below the first: its acceptance is the rare event."""


class TailCase(NamedTuple):
    """A leading token, and tails below it.

    Attributes:
        name: of the case in tables.
        gap: logits between the leading token and the tails.
        num_tails: how many tails.
        draws: number of draws in the specification's test.
    """

    name: str
    gap: float
    num_tails: int
    draws: int

    @property
    def probability(self) -> float:
        """The probability that a tail wins a draw."""
        mass = self.num_tails * math.exp(-self.gap)
        return mass / (1.0 + mass)

    def logits(self) -> Tensor:
        """The logits, float32 [vocab_size]; the leading token is token 0."""
        if self is TILES:
            logits = torch.full(((self.num_tails + 1) * TILE,), -torch.inf)
            logits[::TILE] = -self.gap
        else:
            logits = torch.full((self.num_tails + 1,), -self.gap)
        logits[0] = 0.0
        return logits


MANY = TailCase("tails everywhere", gap=20.5, num_tails=262_144, draws=100_000)
TOKENS = TailCase("tails in the head's tile", gap=19.0, num_tails=TILE - 1, draws=6_000_000)
TILES = TailCase("a tail in each other tile", gap=19.0, num_tails=150, draws=40_000_000)
FAR = TailCase("tails further off", gap=24.0, num_tails=262_144, draws=3_300_000)
CASES = (MANY, TOKENS, TILES, FAR)


def wins(case: TailCase, purpose: Purpose) -> tuple[Tensor, Tensor]:
    """Positions and tokens of the draws below `case.draws` that a tail wins, int64.

    The draft stream is that of depth 1. The two best keys of every win differ by 1e-4 or more, so
    the rounding of tile sums cannot matter.
    """
    pairs = torch.tensor(WINS_BY_STREAM.get((CASES.index(case), int(purpose)), ()))
    pairs = pairs.view(-1, 2)
    scale = TILE if case is TILES else 1  # there the table holds the tile
    return pairs[:, 0], pairs[:, 1] * scale
