"""The memory of one rank of several, which sleep and wake together."""

from __future__ import annotations

from collections.abc import Sequence

from engine.contracts.control import MemoryPart
from engine.errors import ControlError
from engine.memory.sleeping import SleepingMemory
from engine.weights.agreement import agreed
from sampling.device.ranks import RankExchange


class RankMemory:
    """Gives parts of a rank's memory back and takes them again, as all ranks do at once."""

    def __init__(self, memory: SleepingMemory, exchange: RankExchange) -> None:
        self._memory, self._exchange = memory, exchange

    def give_back(self, parts: Sequence[MemoryPart], *, keeps_weights: bool) -> None:
        """Give parts back, on all ranks or on none; see `Runner`."""
        try:
            agreed(lambda: self._copy(parts, keeps_weights=keeps_weights), self._exchange)
        except ControlError:
            for part in parts:
                self._memory.drop_copy(part)
            raise
        for part in parts:
            self._memory.give_back(part)
        agreed(lambda: None, self._exchange)  # whoever is told may take every GPU

    def take_again(self, parts: Sequence[MemoryPart]) -> None:
        """Take parts again, on all ranks or on none; see `Runner`."""
        try:
            agreed(lambda: self._take(parts), self._exchange)
        except ControlError:
            for part in parts:
                self._memory.give_back(part)
            raise
        for part in parts:
            self._memory.restore(part)

    def _copy(self, parts: Sequence[MemoryPart], *, keeps_weights: bool) -> None:
        for part in parts:
            self._memory.copy(part, keep=keeps_weights and part == "weights")

    def _take(self, parts: Sequence[MemoryPart]) -> None:
        for part in parts:
            self._memory.take_again(part)
