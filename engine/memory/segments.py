"""Segments of a part of a GPU's memory: unmapped, mapped again, and what they hold in between.

What is kept on the host is all that a part holds but for what may be lost, so that a tensor that
nobody thought of is kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from engine.contracts.control import MemoryPart
from engine.errors import ControlError, first_line


class Range(NamedTuple):
    """Addresses from `start` up to `end`."""

    start: int
    end: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Range:
        """Where the numbers of a contiguous tensor are."""
        return cls(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The same addresses in ranges that are apart, in ascending order."""
    apart: list[Range] = []
    for start, end in sorted(ranges):
        if apart and start <= apart[-1].end:
            apart[-1] = Range(apart[-1].start, max(apart[-1].end, end))
        else:
            apart.append(Range(start, end))
    return apart


def without(whole: Range, holes: Sequence[Range]) -> list[Range]:
    """What is left of a range, in ascending order; `holes` are as `joined` gives them."""
    left, start = [], whole.start
    for index in range(bisect_right(holes, start, key=lambda hole: hole.end), len(holes)):
        hole = holes[index]
        if hole.start >= whole.end:
            break
        if hole.start > start:
            left.append(Range(start, hole.start))
        start = hole.end
    if start < whole.end:
        left.append(Range(start, whole.end))
    return left


class MemoryDriver(Protocol):
    """A driver's calls for virtual memory."""

    def map(self, address: int, size: int) -> int: ...

    def unmap(self, address: int, size: int, handle: int) -> None: ...

    def clear(self, address: int, size: int) -> None: ...

    def host(self, size: int) -> torch.Tensor: ...

    def to_host(self, host: torch.Tensor, address: int) -> None: ...

    def to_device(self, address: int, host: torch.Tensor) -> None: ...


class Saved(NamedTuple):
    """What of a segment is kept: its ranges, ascending, one after another in `host` uint8."""

    ranges: list[Range]
    host: torch.Tensor

    def pieces(self) -> Iterator[tuple[Range, torch.Tensor]]:
        """Each range, with its bytes."""
        sizes = [each.end - each.start for each in self.ranges]
        return zip(self.ranges, torch.split(self.host, sizes), strict=True)


@dataclass
class Segment:
    """A range of addresses.

    Attributes:
        handle: of the memory behind it; None while there is none.
        saved: what it held; None while that is where it belongs.
        copied: what is to be `saved` once it is given back; None where nothing was copied.
    """

    address: int
    size: int
    handle: int | None
    saved: Saved | None = None
    copied: Saved | None = None

    @property
    def range(self) -> Range:
        """Its addresses."""
        return Range(self.address, self.address + self.size)


class SegmentMemory:
    """Gives segments back and takes them again."""

    def __init__(self, driver: MemoryDriver) -> None:
        self._driver = driver

    def copy(self, segments: Sequence[Segment], lost: Sequence[Range], part: MemoryPart) -> None:
        """Copy to the host what segments hold, but for what is `lost`.

        Raises:
            ControlError: "no_memory"; nothing was copied.
        """
        holes = joined(lost)
        try:
            copied = [self._saved(segment, holes) for segment in segments]
        except RuntimeError as error:
            words = f"the host has no room for a copy of {part!r}, which stays as it is: "
            raise ControlError(words + first_line(error), "no_memory") from error
        for segment, own in zip(segments, copied, strict=True):
            segment.copied = own

    def drop_copy(self, segments: Sequence[Segment]) -> None:
        """Drop what was copied of segments that stay as they are."""
        for segment in segments:
            segment.copied = None

    def give_back(self, segments: Sequence[Segment]) -> None:
        """Unmap segments; what was copied is what they held."""
        for segment in segments:
            segment.saved, segment.copied = segment.copied or segment.saved, None
            if segment.handle is not None:
                self._unmap(segment)

    def _saved(self, segment: Segment, holes: Sequence[Range]) -> Saved:
        if segment.saved is not None:
            return self._saved_less(segment.saved, holes)
        saved = self._room(without(segment.range, holes))
        for own, piece in saved.pieces():
            self._driver.to_host(piece, own.start)
        return saved

    def _saved_less(self, before: Saved, holes: Sequence[Range]) -> Saved:
        left = [
            (each, whole, kept) for whole, kept in before.pieces() for each in without(whole, holes)
        ]
        ranges = [own for own, _, _ in left]
        if ranges == before.ranges:
            return before
        saved = self._room(ranges)
        for (_, piece), (own, whole, kept) in zip(saved.pieces(), left, strict=True):
            piece.copy_(kept[own.start - whole.start : own.end - whole.start])
        return saved

    def _room(self, ranges: list[Range]) -> Saved:
        return Saved(ranges, self._driver.host(sum(end - start for start, end in ranges)))

    def take_again(self, segments: Sequence[Segment], part: MemoryPart) -> None:
        """Map segments, all or none.

        Raises:
            ControlError: "no_memory".
        """
        taken: list[Segment] = []
        for segment in segments:
            if segment.handle is not None:
                continue
            try:
                segment.handle = self._driver.map(segment.address, segment.size)
            except RuntimeError as error:
                for each in taken:
                    self._unmap(each)
                size = sum(each.size for each in segments) / (1 << 30)
                raise ControlError(
                    f"the GPU has no room for the {size:.2f} GiB of {part!r}, which stays asleep: "
                    f"{first_line(error)}",
                    "no_memory",
                ) from error
            taken.append(segment)

    def restore(self, segments: Sequence[Segment]) -> None:
        """Fill segments with what was kept, and zeros elsewhere: no cache holds NaN."""
        for segment in segments:
            if segment.saved is None:
                continue
            self._driver.clear(segment.address, segment.size)
            for own, piece in segment.saved.pieces():
                self._driver.to_device(own.start, piece)
            segment.saved = None

    def _unmap(self, segment: Segment) -> None:
        assert segment.handle is not None
        self._driver.unmap(segment.address, segment.size, segment.handle)
        segment.handle = None
