"""Predicts how long a step takes, so that prompts do not hold up tokens. No torch."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WEIGHT = 0.2
"""Weight of a new time among those before."""
MOST_RISE = 2.0
"""A time counts for at most so many times what was predicted, so that one hiccup changes little."""
FIRST_TOKENS = 256
"""Prompt tokens of a step beside decoding rows before any such step was timed."""
LEAST_TOKENS = 64
"""Prompt tokens that a step may always have: prompts go on, if slowly, where decoding alone takes
longer than the gap allows. Steps with fewer say nothing of a token's time either."""


class Pace:
    """Bounds the prompt tokens of steps in which rows decode.

    A step is taken to last as long as one without prompt tokens, and a time for each of its prompt
    tokens. Both follow the steps that were read back. What the first misses (contexts that grow,
    rows that end) the second makes up for at the numbers of tokens that steps have.

    Args:
        max_gap_s: the longest that such a step should last; None bounds nothing.
    """

    def __init__(
        self, max_gap_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_gap_s = max_gap_s
        self._clock = clock
        self._launched_at: deque[float] = deque()
        self._read_at = 0.0
        self._base_s: float | None = None
        self._token_s: float | None = None

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens that the next step may have beside rows that decode; None for any."""
        if self._max_gap_s is None:
            return None
        if self._token_s is None:
            return FIRST_TOKENS
        left = self._max_gap_s - (self._base_s or 0.0)
        return max(LEAST_TOKENS, int(left / self._token_s))

    def launched(self) -> None:
        """Note that a step was launched after those before."""
        self._launched_at.append(self._clock())

    def read_back(self, num_prompt: int, *, alone: bool = True) -> None:
        """Note that the first step launched was read back.

        Args:
            num_prompt: its prompt tokens.
            alone: whether nothing but steps of choices ran since the last one was read back.
        """
        began, now = max(self._launched_at.popleft(), self._read_at), self._clock()
        self._read_at = now
        if alone and self._max_gap_s is not None:
            self._learn(now - began, num_prompt)

    def _learn(self, seconds: float, num_prompt: int) -> None:
        base_s, token_s = self._base_s, self._token_s
        if num_prompt == 0:
            self._base_s = _follow(base_s, seconds)
            return
        if base_s is not None and seconds < base_s:  # decoding alone would have been shorter still
            self._base_s = base_s = _follow(base_s, seconds)
        if num_prompt >= LEAST_TOKENS:
            each = max(seconds - (base_s or 0.0), 0.05 * seconds) / num_prompt
            self._token_s = _follow(token_s, each)


def _follow(known: float | None, new: float) -> float:
    """The mean that moves on to a new value."""
    if known is None:
        return new
    return known + WEIGHT * (min(new, MOST_RISE * known) - known)
