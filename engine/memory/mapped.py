"""Parts of a GPU's memory that are unmapped and mapped again at the same addresses.

Torch allocates a part's tensors from a pool of its own, whose segments come from here: a range of
addresses each, behind which there is memory while the part is awake. Addresses stay reserved, so
whatever holds them is right again once memory is mapped and its contents are back. Torch takes the
two functions of an allocator as plain addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.contracts.control import MemoryPart
from engine.memory.driver import Driver
from engine.memory.segments import Range, Segment, SegmentMemory

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


_CALLBACKS: list[tuple[Any, Any]] = []
"""Functions whose addresses torch has; it may call them as long as the process lives."""


@dataclass
class _Part:
    """A part: torch's pool, its segments by address, and tensors that may be lost.

    The tensors are held, so that torch gives their memory to no others.
    """

    pool: Any
    segments: dict[int, Segment]
    lossy: list[torch.Tensor] = field(default_factory=list)

    def unused(self) -> list[Range]:
        """What the pool has and no tensor holds."""
        return [
            Range(block["address"], block["address"] + block["size"])
            for segment in self.pool.snapshot(include_traces=False)
            for block in segment["blocks"]
            if block["state"] == "inactive"
        ]

    def lost(self) -> list[Range]:
        """Where the tensors are that may be lost, those that are in one piece."""
        return [Range.of(tensor) for tensor in self.lossy if tensor.is_contiguous()]


class MappedMemory:
    """The `SleepingMemory` of a GPU."""

    def __init__(self, device: torch.device) -> None:
        torch.cuda.current_stream(device)  # makes the context that the driver's calls need
        self._device = device
        self._driver = Driver(device.index or 0)
        self._memory = SegmentMemory(self._driver)
        self._parts: dict[MemoryPart, _Part] = {}

    @contextmanager
    def making(self, part: MemoryPart) -> Iterator[None]:
        """What this thread allocates within it belongs to a part."""
        if part not in self._parts:
            self._parts[part] = self._new_part()
        with torch.cuda.use_mem_pool(self._parts[part].pool):
            yield

    def _new_part(self) -> _Part:
        segments: dict[int, Segment] = {}
        driver = self._driver  # torch may free after this object is gone

        def allocate(size: int, device: int, stream: int | None) -> int | None:
            whole = -(-size // driver.granularity) * driver.granularity
            address = driver.reserve(whole)
            try:
                segments[address] = Segment(address, whole, driver.map(address, whole))
            except RuntimeError:
                driver.free(address, whole)
                return None  # torch raises that it is out of memory
            return address

        def free(address: int, size: int, device: int, stream: int | None) -> None:
            segment = segments.pop(address)
            if segment.handle is not None:
                driver.unmap(segment.address, segment.size, segment.handle)
            driver.free(segment.address, segment.size)

        callbacks = _ALLOCATE(allocate), _FREE(free)
        _CALLBACKS.append(callbacks)
        addresses = [ctypes.cast(each, ctypes.c_void_p).value for each in callbacks]
        made: Any = torch._C
        allocator = made._cuda_customAllocator(*addresses)
        return _Part(torch.cuda.MemPool(allocator), segments)

    def note(self, part: MemoryPart, tensors: Iterable[torch.Tensor]) -> None:
        self._parts[part].lossy += tensors

    def copy(self, part: MemoryPart, *, keep: bool) -> None:
        torch.cuda.synchronize(self._device)
        own = self._parts.get(part)
        if own is not None:
            lost = own.unused() + ([] if keep else own.lost())
            self._memory.copy(self._segments(part), lost, part)

    def drop_copy(self, part: MemoryPart) -> None:
        self._memory.drop_copy(self._segments(part))

    def give_back(self, part: MemoryPart) -> None:
        torch.cuda.synchronize(self._device)
        self._memory.give_back(self._segments(part))
        torch.cuda.empty_cache()

    def take_again(self, part: MemoryPart) -> None:
        torch.cuda.empty_cache()  # the driver does not have what torch keeps for later
        self._memory.take_again(self._segments(part), part)

    def restore(self, part: MemoryPart) -> None:
        self._memory.restore(self._segments(part))
        torch.cuda.synchronize(self._device)

    def _segments(self, part: MemoryPart) -> list[Segment]:
        own = self._parts.get(part)
        return [] if own is None else list(own.segments.values())
