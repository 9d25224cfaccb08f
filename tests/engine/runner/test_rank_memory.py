"""Ranks that sleep and wake together."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from engine.contracts.control import MEMORY_PARTS, MemoryPart
from engine.errors import ControlError
from engine.memory.sleeping import FixedMemory
from engine.runner.rank_memory import RankMemory
from sampling.device.ranks import RankExchange
from tests.sampling.ranks import on_ranks


class CountedMemory(FixedMemory):
    """Notes which parts are taken and filled; one part may have no room."""

    def __init__(self, lacking: MemoryPart | None) -> None:
        self.lacking = lacking
        self.taken: set[MemoryPart] = set()
        self.filled: set[MemoryPart] = set(MEMORY_PARTS)
        self.kept: list[tuple[MemoryPart, bool]] = []

    def making(self, part: MemoryPart) -> AbstractContextManager[None]:
        raise NotImplementedError

    def give_back(self, part: MemoryPart, *, keep: bool) -> None:
        self.kept.append((part, keep))
        self.taken.discard(part)
        self.filled.discard(part)

    def take_again(self, part: MemoryPart) -> None:
        if part == self.lacking:
            raise ControlError(f"no room for {part}", "no_memory")
        self.taken.add(part)

    def restore(self, part: MemoryPart) -> None:
        assert part in self.taken
        self.filled.add(part)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("lacking", MEMORY_PARTS)
def test_what_one_rank_cannot_take_none_takes(size: int, lacking: MemoryPart) -> None:
    def wake(exchange: RankExchange) -> tuple[str, bool, bool]:
        own = CountedMemory(lacking if exchange.rank == size - 1 else None)
        memory = RankMemory(own, exchange)
        memory.give_back(MEMORY_PARTS, keeps_weights=False)
        assert own.kept == [("weights", False), ("kv_cache", False)]
        own.kept.clear()
        with pytest.raises(ControlError, match=f"^no room for {lacking}$") as refused:
            memory.take_again(MEMORY_PARTS)
        assert all(keep for _, keep in own.kept), "what is kept on the host stays there"
        asleep = not own.taken and not own.filled
        own.lacking = None
        memory.take_again(MEMORY_PARTS)
        return refused.value.code, asleep, own.filled == set(MEMORY_PARTS)

    assert on_ranks(size, wake) == [("no_memory", True, True)] * size
