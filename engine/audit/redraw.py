"""One token drawn again by the noise contract, and which error of logits explains another one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from engine.audit.distribution import Bools, bounds, edited, kept
from engine.audit.drawn import DrawnChoice, LogitSource, Redrawn, Reported
from sampling import reference
from sampling.noise import LEVEL_TILE, LEVEL_TOKEN, TILE, Purpose, stream
from sampling.reference import Floats

MOST_SLACK = 64.0
"""Errors of logits over T beyond it are not looked for."""
BISECTIONS = 40
UNLIKELY = -9999.0
"""What JSON has in place of -inf."""


def redraw(choice: DrawnChoice, source: LogitSource) -> list[Redrawn]:
    """Derive every token of a choice again.

    Args:
        choice: without a refusal.
        source: of the logits.

    Raises:
        ValueError: the choice's parameters leave no token.
    """
    token_ids = [*choice.prompt, *choice.output]
    start = len(choice.prompt)
    return [
        _token(choice, raw, num_output)
        for num_output, raw in enumerate(source.logits(token_ids, start))
    ]


def _token(choice: DrawnChoice, raw: npt.NDArray[np.float32], num_output: int) -> Redrawn:
    params, token = choice.params, choice.output[num_output]
    logits = edited(raw, params, choice.prompt, choice.output[:num_output])
    if not (logits > -math.inf).any():
        raise ValueError("its parameters leave no token")
    position = len(choice.prompt) + num_output
    if params.greedy:
        derived, logprob = int(logits.argmax()), 0.0
        noise = float(logits.max() - logits[token]) / 2
        if token != derived:
            noise = max(noise, math.ulp(0.0))  # equal logits: the lower id is drawn
    else:
        with np.errstate(over="ignore"):  # at the lowest temperatures others are at -inf
            scaled = (logits - logits.max()) / params.temperature
        assert params.seed is not None, "a choice without a seed is refused"
        race = _Race(scaled, params.seed, position, choice.choice)
        left = kept(scaled, params)
        derived = race.winner(left)
        logprob = float(scaled[token] - _log_sum(scaled[left]))
        noise = 0.0
        if token != derived:
            slack = _slack(lambda e: race.may_win(token, *bounds(scaled, params, e), e))
            noise = slack * params.temperature
    return Redrawn(
        position=position,
        token=token,
        derived=derived,
        noise=noise,
        logprob=logprob,
        gap=0.0 if choice.logprobs is None else _gap(choice.logprobs[num_output], raw),
    )


def _gap(reported: Reported, raw: npt.NDArray[np.float32]) -> float:
    """How far reported raw logprobs are from those of the logits at most, in nats."""
    log_sum = _log_sum(raw.astype(np.float64))
    pairs = ((max(value, UNLIKELY), float(raw[token]) - log_sum) for token, value in reported)
    return max((abs(value - max(own, UNLIKELY)) for value, own in pairs), default=0.0)


class _Race:
    """The two-level race of one position over logits divided by T, float64 [vocab_size]."""

    def __init__(self, scaled: Floats, seed: int, position: int, choice: int) -> None:
        self._weights = np.exp(scaled - scaled.max())
        self._place = seed, position, choice
        num_tiles = -(-len(scaled) // TILE)
        self._tiles = self._noise(range(num_tiles), LEVEL_TILE)
        self._tokens = lru_cache(lambda tile: self._noise(self._ids(tile), LEVEL_TOKEN))

    def winner(self, left: Bools) -> int:
        """The token that wins among those that are left."""
        weights = np.where(left, self._weights, 0.0)
        tile = _first(self._tiles, _masses(weights))
        ids = self._ids(tile)
        return ids[_first(self._tokens(tile), weights[ids.start : ids.stop])]

    def may_win(self, token: int, sure: Bools, possible: Bools, slack: float) -> bool:
        """Whether a token wins where each scaled logit may be off by `slack`.

        It may if it does with its own tile as heavy and all others as light as can be, and likewise
        inside its tile.
        """
        if not possible[token]:
            return False
        gain = math.exp(2 * slack)
        most = _masses(np.where(possible, self._weights, 0.0))
        least = _masses(np.where(sure, self._weights, 0.0))
        tile = token // TILE
        if not _may_be_first(self._tiles, most[tile] * gain, least, tile):
            return False
        ids = self._ids(tile)
        own = np.where(sure, self._weights, 0.0)[ids.start : ids.stop]
        return _may_be_first(
            self._tokens(tile), self._weights[token] * gain, own, token - ids.start
        )

    def _ids(self, tile: int) -> range:
        return range(tile * TILE, min((tile + 1) * TILE, len(self._weights)))

    def _noise(self, indices: range, level: int) -> Floats:
        seed, position, choice = self._place
        stream_id = stream(Purpose.TARGET, level)
        return np.array(
            [reference.exponential(seed, i, position, choice, stream_id) for i in indices]
        )


def _masses(weights: Floats) -> Floats:
    masses: Floats = np.add.reduceat(weights, np.arange(0, len(weights), TILE))
    return masses


def _first(noise: Floats, rates: Floats) -> int:
    keys = np.full(len(noise), np.inf)
    np.divide(noise, rates, out=keys, where=rates > 0)
    return int(keys.argmin())


def _may_be_first(noise: Floats, rate: float, rates: Floats, index: int) -> bool:
    """Whether an index with a rate of its own is no later than the others."""
    keys = np.full(len(noise), np.inf)
    np.divide(noise, rates, out=keys, where=rates > 0)
    keys[index] = np.inf
    return bool(rate > 0 and noise[index] / rate <= keys.min(initial=np.inf))


def _slack(explains: Callable[[float], bool]) -> float:
    """The least slack that explains a token, by bisection; inf for none up to `MOST_SLACK`."""
    low, high = 0.0, MOST_SLACK
    if not explains(high):
        return math.inf
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if explains(middle) else (middle, high)
    return high


def _log_sum(values: Floats | Sequence[float]) -> float:
    values = np.asarray(values, dtype=np.float64)
    highest = float(values.max())
    return highest + math.log(float(np.exp(values - highest).sum()))
