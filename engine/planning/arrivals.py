"""Numbers requests as they come, and parks those that come while others are to end. No torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.messages.request import Request
from engine.planning.seeds import Seeds
from engine.rows import Choice


class Arrivals:
    """Makes the choices of requests, in order of submission.

    Args:
        seed: as `Seeds` takes it.
        begin: lets a request's choices run.
    """

    def __init__(self, seed: int | None, begin: Callable[[list[Choice]], None]) -> None:
        self._seeds = Seeds(seed)
        self._begin = begin
        self._num_arrivals = self._num_bodies = 0
        self._parked: dict[tuple[bytes, int], list[Choice]] | None = None

    def number(self) -> int:
        """The number of a request that has just come."""
        self._num_arrivals += 1
        return self._num_arrivals

    def choices(self, frontend: bytes, request: Request) -> list[Choice]:
        """The choices of a request that has just come."""
        arrival = self.number()
        self._num_bodies += request.num_before == 0
        turn = self._num_bodies + request.num_before
        prompt = np.array(request.prompt_token_ids, dtype=np.int32)
        request, seed = self._seeds.settle(request)
        choices = [
            Choice(frontend, request, i, seed, arrival, prompt, turn + i) for i in range(request.n)
        ]
        if request.prompt_logprobs is not None:
            choices[0].prompt_parts = []
        return choices

    def begin(self, choices: list[Choice]) -> None:
        """Let choices run, or park them."""
        if self._parked is None:
            self._begin(choices)
        else:
            self._parked[_key(choices[0])] = choices

    def forget(self, choice: Choice) -> None:
        """Hold a choice that ended no longer, if it was parked."""
        if self._parked is None or (choices := self._parked.get(_key(choice))) is None:
            return
        choices.remove(choice)
        if not choices:
            del self._parked[_key(choice)]

    @property
    def num_parked(self) -> int:
        """Choices that are parked."""
        return sum(map(len, (self._parked or {}).values()))

    def park(self) -> None:
        """Park the choices that come from now on."""
        self._parked = self._parked or {}

    def unpark(self) -> None:
        """Let the parked choices run."""
        parked, self._parked = self._parked or {}, None
        for choices in parked.values():
            self._begin(choices)


def _key(choice: Choice) -> tuple[bytes, int]:
    return choice.frontend, choice.request.handle
