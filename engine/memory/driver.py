"""The CUDA driver's calls for virtual memory, by ctypes: torch has none that keep addresses."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any

import torch

_PINNED, _DEVICE, _READ_WRITE = 1, 1, 3
"""The driver's numbers of a kind of allocation, a kind of place and a kind of access."""


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


class Driver:
    """The `MemoryDriver` of one GPU; each call raises `RuntimeError`.

    Args:
        cuda: the driver's library; None loads it.
    """

    def __init__(self, device: int, cuda: Any = None) -> None:
        self._cuda = cuda or ctypes.CDLL("libcuda.so.1")
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
        """Map new memory to a range, all or none; returns its handle."""
        handle, length = ctypes.c_uint64(), ctypes.c_size_t(size)
        start, zero = ctypes.c_uint64(address), ctypes.c_uint64(0)
        properties = ctypes.byref(self._properties)
        access = ctypes.byref(self._access)
        with ExitStack() as undo:
            self._call("cuMemCreate", ctypes.byref(handle), length, properties, zero)
            undo.callback(self._call, "cuMemRelease", handle)
            self._call("cuMemMap", start, length, ctypes.c_size_t(0), handle, zero)
            undo.callback(self._call, "cuMemUnmap", start, length)
            self._call("cuMemSetAccess", start, length, access, ctypes.c_size_t(1))
            undo.pop_all()
        return handle.value

    def unmap(self, address: int, size: int, handle: int) -> None:
        """Give the memory of a range back; the addresses stay reserved."""
        self._call("cuMemUnmap", ctypes.c_uint64(address), ctypes.c_size_t(size))
        self._call("cuMemRelease", ctypes.c_uint64(handle))

    def clear(self, address: int, size: int) -> None:
        """Fill a range with zeros."""
        byte, length = ctypes.c_ubyte(0), ctypes.c_size_t(size)
        self._call("cuMemsetD8_v2", ctypes.c_uint64(address), byte, length)

    def host(self, size: int) -> torch.Tensor:
        """Allocate pinned memory of the host, uint8 [size]."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def to_host(self, host: torch.Tensor, address: int) -> None:
        """Copy a range to pinned memory."""
        target, size = ctypes.c_void_p(host.data_ptr()), ctypes.c_size_t(host.nbytes)
        self._call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(address), size)

    def to_device(self, address: int, host: torch.Tensor) -> None:
        """Copy pinned memory to a range."""
        source, size = ctypes.c_void_p(host.data_ptr()), ctypes.c_size_t(host.nbytes)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), source, size)
