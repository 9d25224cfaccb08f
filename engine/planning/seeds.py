"""Seeds of requests that name none: random ones, or one sequence for all frontends."""

from __future__ import annotations

import random
import secrets

import msgspec

from engine.messages.request import Request


class Seeds:
    """Gives seeds to requests, in order of their arrival.

    Args:
        first: begins a sequence that is the same at every start; None draws at random.
    """

    def __init__(self, first: int | None) -> None:
        self._sequence = None if first is None else random.Random(first)

    def settle(self, request: Request) -> tuple[Request, int]:
        """The request, with the sequence's next seed where it names none, and its noise key."""
        params = request.params
        if params.seed is None and self._sequence is not None:
            params = msgspec.structs.replace(params, seed=self._sequence.getrandbits(63))
            request = msgspec.structs.replace(request, params=params)
        if params.seed is None:
            return request, secrets.randbits(64) - 2**63
        return request, params.seed
