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
    """Notes which parts are copied, taken and filled; one may have no room, here or on the host."""

    def __init__(self, lacking: MemoryPart | None) -> None:
        self.lacking = lacking
        self.taken: set[MemoryPart] = set(MEMORY_PARTS)
        self.filled: set[MemoryPart] = set(MEMORY_PARTS)
        self.copied: dict[MemoryPart, bool] = {}

    def making(self, part: MemoryPart) -> AbstractContextManager[None]:
        raise NotImplementedError

    def copy(self, part: MemoryPart, *, keep: bool) -> None:
        if part == self.lacking:
            raise ControlError(f"no room for {part}", "no_memory")
        self.copied[part] = keep

    def drop_copy(self, part: MemoryPart) -> None:
        self.copied.pop(part, None)

    def give_back(self, part: MemoryPart) -> None:
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
        own = CountedMemory(None)
        memory = RankMemory(own, exchange)
        memory.give_back(MEMORY_PARTS, keeps_weights=True)
        assert own.copied == {"weights": True, "kv_cache": False}
        own.lacking = lacking if exchange.rank == size - 1 else None
        with pytest.raises(ControlError, match=f"^no room for {lacking}$") as refused:
            memory.take_again(MEMORY_PARTS)
        asleep = not own.taken and not own.filled
        own.lacking = None
        memory.take_again(MEMORY_PARTS)
        return refused.value.code, asleep, own.filled == set(MEMORY_PARTS)

    assert on_ranks(size, wake) == [("no_memory", True, True)] * size


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("lacking", MEMORY_PARTS)
def test_where_one_host_has_no_room_none_gives_back(size: int, lacking: MemoryPart) -> None:
    def sleep(exchange: RankExchange) -> tuple[str, bool]:
        own = CountedMemory(lacking if exchange.rank == size - 1 else None)
        memory = RankMemory(own, exchange)
        with pytest.raises(ControlError, match=f"^no room for {lacking}$") as refused:
            memory.give_back(MEMORY_PARTS, keeps_weights=True)
        assert not own.copied
        return refused.value.code, own.taken == own.filled == set(MEMORY_PARTS)

    assert on_ranks(size, sleep) == [("no_memory", True)] * size


def test_memory_is_given_back_on_all_ranks_once_one_says_so() -> None:
    given = list[int]()

    def sleep(exchange: RankExchange) -> int:
        own = CountedMemory(None)
        give_back = own.give_back

        def noted(part: MemoryPart) -> None:
            give_back(part)
            given.append(exchange.rank)

        own.give_back = noted  # type: ignore[method-assign]
        RankMemory(own, exchange).give_back(["weights"], keeps_weights=True)
        return len(given)

    assert on_ranks(3, sleep) == [3, 3, 3]
