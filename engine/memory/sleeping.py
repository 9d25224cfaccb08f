"""Memory of a rank that is given back and taken again at the same addresses.

Captured graphs, views and compiled products hold addresses, so parts are unmapped from under them
and mapped again. On a GPU a part is what was allocated while it was made (`engine.memory.mapped`);
on a CPU, where weights are on the host as they are, the cache's pages are returned to the system.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

from engine.contracts.control import NO_SLEEP, MemoryPart
from engine.errors import ControlError

_DONT_NEED = 4
"""Linux's MADV_DONTNEED: pages are dropped, and zero when they are touched again."""


class SleepingMemory(Protocol):
    """The memory of one rank, by parts."""

    def making(self, part: MemoryPart) -> AbstractContextManager[None]:
        """What is allocated on the device within it belongs to a part."""
        ...

    def note(self, part: MemoryPart, tensors: Iterable[torch.Tensor]) -> None:
        """Note tensors of a part that may be lost; all else that it has is kept."""
        ...

    def copy(self, part: MemoryPart, *, keep: bool) -> None:
        """Copy a part to the host before it is given back; without `keep` what may be lost is not.

        Of a part that was given back before, the copy is copied.

        Raises:
            ControlError: "no_memory", or "no_sleep" where no memory is ever given back.
        """
        ...

    def drop_copy(self, part: MemoryPart) -> None:
        """Drop what `copy` made; the part stays as it was."""
        ...

    def give_back(self, part: MemoryPart) -> None:
        """Give a part back; what it held is what was copied last."""
        ...

    def take_again(self, part: MemoryPart) -> None:
        """Take the memory of a part again; `restore` fills it, and `give_back` undoes it.

        Raises:
            ControlError: "no_memory"; the part is as it was.
        """
        ...

    def restore(self, part: MemoryPart) -> None:
        """Fill a part that was taken again with what was kept, and the rest with zeros or any."""
        ...


class FixedMemory:
    """Memory that is never given back."""

    def making(self, part: MemoryPart) -> AbstractContextManager[None]:
        return nullcontext()

    def note(self, part: MemoryPart, tensors: Iterable[torch.Tensor]) -> None:
        pass

    def copy(self, part: MemoryPart, *, keep: bool) -> None:
        raise ControlError(NO_SLEEP, "no_sleep")

    def drop_copy(self, part: MemoryPart) -> None:
        """There is none."""

    def give_back(self, part: MemoryPart) -> None:
        raise AssertionError("it was not copied")

    def take_again(self, part: MemoryPart) -> None:
        raise AssertionError("nothing was given back")

    def restore(self, part: MemoryPart) -> None:
        raise AssertionError("nothing was given back")


class HostMemory:
    """Memory of a CPU: the cache's pages go, weights stay."""

    def __init__(self) -> None:
        self._cache: list[torch.Tensor] = []

    def making(self, part: MemoryPart) -> AbstractContextManager[None]:
        return nullcontext()

    def note(self, part: MemoryPart, tensors: Iterable[torch.Tensor]) -> None:
        if part == "kv_cache":
            self._cache += tensors

    def copy(self, part: MemoryPart, *, keep: bool) -> None:
        """What is on the host stays there."""

    def drop_copy(self, part: MemoryPart) -> None:
        """There is none."""

    def give_back(self, part: MemoryPart) -> None:
        if part == "kv_cache":
            for tensor in self._cache:
                drop_pages(tensor)

    def take_again(self, part: MemoryPart) -> None:
        """Pages come back by themselves, as zeros."""

    def restore(self, part: MemoryPart) -> None:
        """Nothing else was given back."""


def drop_pages(tensor: torch.Tensor) -> None:
    """Return to the system the whole pages within a tensor's memory; they are zeros afterwards."""
    page = mmap.PAGESIZE
    begin = -(-tensor.data_ptr() // page) * page
    end = (tensor.data_ptr() + tensor.nbytes) // page * page
    if begin < end:
        libc = ctypes.CDLL(None, use_errno=True)
        address, length = ctypes.c_void_p(begin), ctypes.c_size_t(end - begin)
        if libc.madvise(address, length, _DONT_NEED):
            raise OSError(ctypes.get_errno(), "madvise")
