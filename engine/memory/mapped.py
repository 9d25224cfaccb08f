"""Parts of a GPU's memory that are unmapped and mapped again at the same addresses.

Torch allocates a part's tensors from a pool of its own, whose segments come from here: a range of
addresses each, behind which there is memory while the part is awake. Addresses stay reserved, so
whatever holds them is right again once memory is mapped and its contents are back. The driver is
called by ctypes: torch takes the two functions of an allocator as plain addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.contracts.control import MemoryPart

_PINNED, _DEVICE, _READ_WRITE = 1, 1, 3
"""The driver's numbers of a kind of allocation, a kind of place and a kind of access."""
SMALL_SEGMENT = 2 << 20
"""Torch keeps tensors below 1 MiB in segments of so many bytes: tables, which are always kept."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _AllocFlags(ctypes.Structure):
    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", _AllocFlags),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


_CALLBACKS: list[tuple[Any, Any]] = []
"""Functions whose addresses torch has; it may call them as long as the process lives."""


@dataclass
class _Segment:
    """A range of addresses.

    Attributes:
        handle: of the memory behind it; None while there is none.
        kept: the contents on the host, pinned; None where they are not kept.
    """

    address: int
    size: int
    handle: int | None
    kept: torch.Tensor | None = None


@dataclass
class _Pool:
    """A part: torch's pool, and its segments by address."""

    pool: Any
    segments: dict[int, _Segment] = field(default_factory=dict)


class Driver:
    """The driver's calls for virtual memory on one GPU; each raises `RuntimeError`."""

    def __init__(self, device: int) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        location = _Location(_DEVICE, device)
        self._properties = _Properties(type=_PINNED, location=location)
        self._access = _Access(location, _READ_WRITE)
        granularity = ctypes.c_size_t()
        self._call(
            "cuMemGetAllocationGranularity",
            ctypes.byref(granularity),
            ctypes.byref(self._properties),
            ctypes.c_int(0),
        )
        self.granularity = granularity.value

    def _call(self, name: str, *args: Any) -> None:
        if (code := getattr(self._cuda, name)(*args)) != 0:
            raise RuntimeError(f"{name} failed with CUDA error {code}")

    def reserve(self, size: int) -> int:
        """Reserve a range of addresses."""
        address = ctypes.c_uint64()
        zero = ctypes.c_uint64(0)
        size_t, none = ctypes.c_size_t(size), ctypes.c_size_t(0)
        self._call("cuMemAddressReserve", ctypes.byref(address), size_t, none, zero, zero)
        return address.value

    def free(self, address: int, size: int) -> None:
        """Give a range of addresses up."""
        self._call("cuMemAddressFree", ctypes.c_uint64(address), ctypes.c_size_t(size))

    def map(self, address: int, size: int) -> int:
        """Map new memory to a range; returns its handle."""
        handle, length = ctypes.c_uint64(), ctypes.c_size_t(size)
        start, zero = ctypes.c_uint64(address), ctypes.c_uint64(0)
        properties = ctypes.byref(self._properties)
        self._call("cuMemCreate", ctypes.byref(handle), length, properties, zero)
        self._call("cuMemMap", start, length, ctypes.c_size_t(0), handle, zero)
        self._call("cuMemSetAccess", start, length, ctypes.byref(self._access), ctypes.c_size_t(1))
        return handle.value

    def unmap(self, address: int, size: int, handle: int) -> None:
        """Give the memory of a range back; the addresses stay reserved."""
        self._call("cuMemUnmap", ctypes.c_uint64(address), ctypes.c_size_t(size))
        self._call("cuMemRelease", ctypes.c_uint64(handle))

    def clear(self, address: int, size: int) -> None:
        """Fill a range with zeros."""
        byte, length = ctypes.c_ubyte(0), ctypes.c_size_t(size)
        self._call("cuMemsetD8_v2", ctypes.c_uint64(address), byte, length)

    def to_host(self, host: torch.Tensor, address: int) -> None:
        """Copy a range to pinned memory."""
        target, size = ctypes.c_void_p(host.data_ptr()), ctypes.c_size_t(host.nbytes)
        self._call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(address), size)

    def to_device(self, address: int, host: torch.Tensor) -> None:
        """Copy pinned memory to a range."""
        source, size = ctypes.c_void_p(host.data_ptr()), ctypes.c_size_t(host.nbytes)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), source, size)


class MappedMemory:
    """The `SleepingMemory` of a GPU."""

    def __init__(self, device: torch.device) -> None:
        torch.cuda.current_stream(device)  # makes the context that the driver's calls need
        self._device = device
        self._driver = Driver(device.index or 0)
        self._pools: dict[MemoryPart, _Pool] = {}

    @contextmanager
    def making(self, part: MemoryPart) -> Iterator[None]:
        """What this thread allocates within it belongs to a part."""
        if part not in self._pools:
            self._pools[part] = self._new_pool()
        with torch.cuda.use_mem_pool(self._pools[part].pool):
            yield

    def _new_pool(self) -> _Pool:
        segments: dict[int, _Segment] = {}
        driver = self._driver  # torch may free after this object is gone

        def allocate(size: int, device: int, stream: int | None) -> int:
            whole = -(-size // driver.granularity) * driver.granularity
            address = driver.reserve(whole)
            segments[address] = _Segment(address, whole, driver.map(address, whole))
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
        return _Pool(torch.cuda.MemPool(allocator), segments)

    def note(self, part: MemoryPart, tensors: Iterable[torch.Tensor]) -> None:
        """Nothing is to be noted: a part is what was allocated for it."""

    def give_back(self, part: MemoryPart, *, keep: bool) -> None:
        """Unmap a part; `keep` copies it to pinned memory of the host before.

        Of a part that is unmapped already, without `keep` the copy is let go.
        """
        torch.cuda.synchronize(self._device)
        for segment in self._segments(part):
            keeps = keep or segment.size <= SMALL_SEGMENT
            if segment.handle is None:
                segment.kept = segment.kept if keeps else None
                continue
            if keeps:
                segment.kept = torch.empty(segment.size, dtype=torch.uint8, pin_memory=True)
                self._driver.to_host(segment.kept, segment.address)
            self._driver.unmap(segment.address, segment.size, segment.handle)
            segment.handle = None
        torch.cuda.empty_cache()

    def take_again(self, part: MemoryPart) -> None:
        """Map a part, with its contents where they were kept, else zeros: no cache holds NaN."""
        for segment in self._segments(part):
            if segment.handle is None:
                segment.handle = self._driver.map(segment.address, segment.size)
            if segment.kept is None:
                self._driver.clear(segment.address, segment.size)
            else:
                self._driver.to_device(segment.address, segment.kept)
                segment.kept = None
        torch.cuda.synchronize(self._device)

    def _segments(self, part: MemoryPart) -> list[_Segment]:
        pool = self._pools.get(part)
        return [] if pool is None else list(pool.segments.values())

    def num_bytes(self, part: MemoryPart) -> int:
        """Bytes that a part has, awake or asleep."""
        return sum(segment.size for segment in self._segments(part))
