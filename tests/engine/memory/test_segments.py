"""Segments that are unmapped and mapped again, over a driver whose memory is on the host."""

from __future__ import annotations

import random

import pytest
import torch

from engine.errors import ControlError
from engine.memory.segments import Range, Segment, SegmentMemory, joined, without
from tests.engine.memory.fake_driver import FakeDriver

MIB = 1 << 20


def addresses(ranges: list[Range]) -> set[int]:
    return {address for start, end in ranges for address in range(start, end)}


@pytest.mark.parametrize("seed", range(20))
def test_ranges_have_the_addresses_of_sets(seed: int) -> None:
    rng = random.Random(seed)

    def drawn() -> list[Range]:
        starts = [rng.randrange(60) for _ in range(rng.randrange(8))]
        return [Range(start, start + rng.randrange(15)) for start in starts]

    holes, whole = drawn(), Range(rng.randrange(20), 40 + rng.randrange(20))
    apart = joined(holes)
    assert addresses(apart) == addresses(holes)
    assert apart == sorted(apart)
    left = without(whole, apart)
    assert addresses(left) == addresses([whole]) - addresses(holes)
    assert left == [each for each in sorted(left) if each.start < each.end]


class Part:
    """Two segments: weights between a table and the slots of adapters; weights and a freed block.

    The table and the slots are larger than a MiB, so that torch would keep them beside weights.
    """

    def __init__(self) -> None:
        self.driver = FakeDriver(16 * MIB)
        first, own = self.driver.segment(8 * MIB)
        second, other = self.driver.segment(4 * MIB)
        self.segments: list[Segment] = [first, second]
        self.memory = SegmentMemory(self.driver)
        self.table, weights, self.stack = torch.split(own, [2 * MIB, 3 * MIB, 3 * MIB])
        more, self.freed = torch.split(other, [3 * MIB, MIB])
        self.weights = [weights, more]
        generator = torch.Generator().manual_seed(3)
        for tensor in (self.table, self.stack, *self.weights):
            tensor.random_(generator=generator)
        self.kept = [self.table.clone(), self.stack.clone()]
        self.all = [*self.kept, *(tensor.clone() for tensor in self.weights)]

    def sleep(self, *, keep: bool) -> None:
        unused = [Range.of(self.freed)]
        lost = [] if keep else [Range.of(tensor) for tensor in self.weights]
        self.memory.copy(self.segments, unused + lost, "weights")
        self.memory.give_back(self.segments)

    def wake(self) -> None:
        self.memory.take_again(self.segments, "weights")
        self.memory.restore(self.segments)

    def is_as_before(self) -> bool:
        now = [self.table, self.stack, *self.weights]
        return all(torch.equal(*pair) for pair in zip(now, self.all, strict=True))


def test_all_that_a_part_holds_is_kept() -> None:
    part = Part()
    part.sleep(keep=True)
    assert not part.driver.mapped
    part.wake()
    assert part.is_as_before()
    assert part.driver.host_bytes == 11 * MIB, "but for a block that no tensor has"


@pytest.mark.parametrize("deepens", [False, True])
def test_only_what_may_be_lost_is_lost(deepens: bool) -> None:
    """A table that no update computes again is as it was, and so is an adapter in its slot."""
    part = Part()
    if deepens:
        part.sleep(keep=True)
        part.driver.host_bytes = 0
    part.sleep(keep=False)
    assert part.driver.host_bytes == 5 * MIB
    part.wake()
    assert torch.equal(part.table, part.kept[0])
    assert torch.equal(part.stack, part.kept[1])
    assert not any(tensor.any() for tensor in part.weights), "zeros: no cache holds NaN"


def test_a_part_that_was_let_go_sleeps_on_at_any_level() -> None:
    part = Part()
    part.sleep(keep=False)
    part.sleep(keep=True)
    part.wake()
    assert torch.equal(part.table, part.kept[0])
    assert not part.weights[0].any()


def test_a_part_that_has_no_room_is_taken_whole_or_not_at_all() -> None:
    part = Part()
    part.sleep(keep=True)
    part.driver.room = 9 * MIB
    with pytest.raises(
        ControlError, match=r"0\.01 GiB of 'weights', which stays asleep: cuMem"
    ) as no:
        part.wake()
    assert no.value.code == "no_memory"
    assert not part.driver.mapped
    assert all(segment.handle is None for segment in part.segments)
    part.driver.room = None
    part.wake()
    assert part.is_as_before()


def test_what_was_taken_and_not_filled_is_given_back_as_it_slept() -> None:
    """As of a rank whose memory was there while another's was not."""
    part = Part()
    part.sleep(keep=True)
    part.memory.take_again(part.segments, "weights")
    part.driver.host_bytes = 0
    part.memory.give_back(part.segments)
    assert not part.driver.mapped
    assert not part.driver.host_bytes, "there is a copy already"
    part.wake()
    assert part.is_as_before()
    part.wake()
    assert part.is_as_before(), "what is awake stays as it is"


def test_a_host_without_room_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part()

    def no_room(size: int) -> torch.Tensor:
        if size <= 3 * MIB:
            raise RuntimeError("cudaHostAlloc")
        return torch.empty(size, dtype=torch.uint8)

    with monkeypatch.context() as patch:
        patch.setattr(part.driver, "host", no_room)
        with pytest.raises(
            ControlError, match="the host has no room for a copy of 'weights'"
        ) as no:
            part.sleep(keep=True)
    assert no.value.code == "no_memory"
    assert len(part.driver.mapped) == 2
    assert all(segment.saved is segment.copied is None for segment in part.segments)
    assert part.is_as_before()


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_copy_that_is_dropped_changes_nothing(sleeps: bool) -> None:
    """As of a rank whose host had room while another's had none."""
    part = Part()
    if sleeps:
        part.sleep(keep=True)
    part.memory.copy(part.segments, [Range.of(tensor) for tensor in part.weights], "weights")
    part.memory.drop_copy(part.segments)
    assert len(part.driver.mapped) == (0 if sleeps else 2)
    part.wake()
    assert part.is_as_before()
    part.sleep(keep=True)
    part.wake()
    assert part.is_as_before()
