"""Copying small host arrays to the device without waiting: one, many together, or rows of tables.

A copy costs the host some 30 us, whatever its size, so that what a step needs goes together.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ALIGNMENT = 16
"""Kernels are compiled for addresses and strides divisible by 16, and anew for others."""


class Writes(NamedTuple):
    """What is to be written into a tensor on the device; see `publish`.

    Attributes:
        places: int64 [n], along the target's first dimension, each of them once.
        values: [n, *target.shape[1:]] of the target's dtype, or one for all places.
    """

    target: Tensor
    places: npt.NDArray[np.int64]
    values: npt.NDArray[Any] | int


class MirroredRows:
    """A table that the host writes row by row, and a copy of it that the device reads.

    Attributes:
        np: the host's table, [max_rows, *row_shape]; write it, then `touch` the row.
        tensor: the device's copy, as of what was published; it never moves, so graphs may hold it.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: type[np.generic],
        device: torch.device,
        *,
        fill: float = 0,
    ) -> None:
        self.np: npt.NDArray[Any] = np.full(shape, fill, dtype=dtype)
        self.tensor: Tensor = torch.from_numpy(self.np.copy()).to(device)
        self._dirty: set[int] = set()

    def touch(self, row: int) -> None:
        """Mark a row to be published."""
        self._dirty.add(row)

    def take(self) -> list[Writes]:
        """The rows touched since the last call, to be published; `np` may be written again."""
        if not self._dirty:
            return []
        rows = np.fromiter(self._dirty, dtype=np.int64)
        self._dirty.clear()
        return [Writes(self.tensor, rows, self.np[rows])]


def publish(writes: Sequence[Writes]) -> None:
    """Write to tensors of one device, in order, on the current stream, by one copy to the device.

    The arrays are left as they are until a CPU has written them, and are free on other devices.
    """
    if not writes:
        return
    sent = iter(to_device_together(_arrays(writes), writes[0].target.device))
    for target, _, values in writes:
        if isinstance(values, int):
            target.index_fill_(0, next(sent), values)
        else:
            target.index_copy_(0, next(sent), next(sent))


def span_writes(
    target: torch.Tensor,
    spans: Sequence[tuple[int, int, int]],
    values: npt.NDArray[np.integer[Any]],
) -> Writes:
    """Writes of values one after the other to spans of a table, to be published.

    There may be hundreds, of a number each: rows that began together need a block together.

    Args:
        target: contiguous, [rows, width] of integers.
        spans: row, start and length of each, at least one; no place is in two.
        values: as many as their lengths together.
    """
    rows, starts, lengths = np.array(spans, dtype=np.int64).T
    firsts = rows * target.shape[1] + starts
    before = np.cumsum(lengths) - lengths
    places = np.arange(len(values)) + np.repeat(firsts - before, lengths)
    return Writes(target.view(-1), places, values.astype(numpy_dtype(target.dtype)))


@functools.cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The dtype of a tensor's array."""
    return torch.empty(0, dtype=dtype).numpy().dtype


def _arrays(writes: Sequence[Writes]) -> list[npt.NDArray[Any]]:
    return [each for _, *both in writes for each in both if not isinstance(each, int)]


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copy a host array to the device in stream order; the array may be reused at once."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor.clone()
    # The caching host allocator keeps the pinned copy until the transfer's event has passed.
    return tensor.pin_memory().to(device, non_blocking=True)


def to_device_together(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Copy host arrays to the device in stream order, by one copy.

    Each begins at a multiple of `ALIGNMENT`. The arrays may be reused at once, but on a CPU: there
    the tensors are these arrays themselves.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    layout = Layout(arrays)
    pinned = torch.empty(layout.num_bytes, dtype=torch.uint8, pin_memory=True)
    layout.write(pinned.numpy())
    return layout.views(pinned.to(device, non_blocking=True))


class Layout:
    """Where arrays lie side by side in bytes, those of a dtype next to one another.

    Attributes:
        num_bytes: that they take together.
    """

    def __init__(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        self._arrays = arrays
        self._by_dtype: dict[np.dtype[Any], list[int]] = {}
        for i, array in enumerate(arrays):
            self._by_dtype.setdefault(array.dtype, []).append(i)
        self.num_bytes = sum(map(_room, arrays))

    def write(self, host: npt.NDArray[np.uint8]) -> None:
        """Write the arrays into uint8 [num_bytes]; what is between them stays as it is."""
        first = 0
        for members in self._by_dtype.values():
            for array in map(self._arrays.__getitem__, members):
                host[first : first + array.nbytes] = array.reshape(-1).view(np.uint8)
                first += _room(array)

    def views(self, flat: Tensor) -> list[Tensor]:
        """The arrays as tensors, in the order they were given, over uint8 [num_bytes]."""
        tensors: list[Tensor] = [flat] * len(self._arrays)
        first = 0
        for dtype, members in self._by_dtype.items():
            # All arrays of a dtype are cut out at once, and what is left empty after each.
            lengths = [count for i in members for count in _lengths(self._arrays[i])]
            last = first + sum(lengths) * dtype.itemsize
            cuts = torch.split(flat[first:last].view(_torch_dtype(dtype)), lengths)[::2]
            for i, cut in zip(members, cuts, strict=True):
                shape = self._arrays[i].shape
                tensors[i] = cut if len(shape) == 1 else cut.view(shape)
            first = last
        return tensors


def _room(array: npt.NDArray[Any]) -> int:
    """The bytes that an array takes among others."""
    return -(-array.nbytes // ALIGNMENT) * ALIGNMENT


def _lengths(array: npt.NDArray[Any]) -> tuple[int, int]:
    """An array's elements, and how many more there is room for after them."""
    return array.size, (_room(array) - array.nbytes) // array.itemsize


@functools.cache
def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=dtype)).dtype
