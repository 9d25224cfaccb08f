"""Copies what a step computed to the host in one transfer, beside the kernels of the next step.

For a lone stream of a small model this is host work of every half millisecond. So tensors of a
captured draw are packed in its graph, memory on the host is taken and given back by hand, and what
arrives is cut up by numpy.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sampling.device.mirror import numpy_dtype

Arrays = dict[str, npt.NDArray[Any]]

SMALLEST = 256
"""Smallest buffer on the host, in bytes."""


class _Field(NamedTuple):
    """Where a tensor lies among packed ones, and what it is."""

    first: int
    num_bytes: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Packed:
    """Tensors side by side as bytes on one device.

    A graph packs its results by `pack` into the same place each time it is replayed; `await_copied`
    comes before. That place is not in the graphs' own memory, where the next step's graph may write
    while the copy is still to begin.

    Args:
        tensors: by name; where only some of the rows are to be copied, all have a multiple of
            `num_rows` as their first dimension.
    """

    def __init__(self, tensors: dict[str, torch.Tensor], num_rows: int = 1) -> None:
        # The widest types first, so that each begins at a multiple of its own size.
        ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
        self.fields: dict[str, _Field] = {}
        first = 0
        for name, tensor in ordered:
            dtype, shape = numpy_dtype(tensor.dtype), tuple(tensor.shape)
            self.fields[name] = _Field(first, tensor.nbytes, dtype, shape)
            first += tensor.nbytes
        self.num_rows = num_rows
        self.flat = torch.empty(first, dtype=torch.uint8, device=ordered[0][1].device)
        self._copied: torch.cuda.Event | None = None
        self.pack(tensors)

    def pack(self, tensors: dict[str, torch.Tensor]) -> None:
        """Pack others of the same names, types and shapes in their place."""
        parts = [tensors[name].contiguous().view(-1).view(torch.uint8) for name in self.fields]
        torch.cat(parts, out=self.flat)

    def await_copied(self) -> None:
        """Let the current stream wait for the last copy of this, if there was one."""
        if self._copied is not None:
            torch.cuda.current_stream(self.flat.device.index).wait_event(self._copied)

    def begin_copy(self) -> _Arriving:
        """Begin to copy everything to the host, after the current stream."""
        if not self.flat.is_cuda:
            return _Arriving(self, None)
        index, num_bytes = self.flat.device.index, len(self.flat)
        buffer = _buffer_for(num_bytes)
        # On a stream of its own: a kernel after a transfer begins some 15 us after it.
        current, stream = torch.cuda.current_stream(index), _copy_stream(index)
        buffer.made.record(current)
        stream.wait_event(buffer.made)
        torch.cuda.set_stream(stream)
        try:
            buffer.tensor[:num_bytes].copy_(self.flat, non_blocking=True)
        finally:
            torch.cuda.set_stream(current)
        buffer.copied.record(stream)
        self._copied = buffer.copied
        return _Arriving(self, buffer)


@functools.cache
def _copy_stream(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


class _Buffer:
    """Pinned memory on the host, and events for what goes there."""

    def __init__(self, num_bytes: int) -> None:
        with torch.inference_mode(False):  # for copies inside that mode and outside
            self.tensor = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        self.bytes = self.tensor.numpy()
        self.made, self.copied = torch.cuda.Event(), torch.cuda.Event()  # type: ignore[no-untyped-call]


@functools.cache
def _free_buffers(num_bytes: int) -> list[_Buffer]:
    """The buffers of a size that nothing is on its way to."""
    return []


def _buffer_for(num_bytes: int) -> _Buffer:
    """A buffer of so many bytes or more, a power of two."""
    size = max(SMALLEST, 1 << (num_bytes - 1).bit_length())
    free = _free_buffers(size)
    return free.pop() if free else _Buffer(size)


class _Arriving(NamedTuple):
    """Packed tensors on their way to a buffer; one that nobody waits for is never used again.

    They are kept until then, so that nothing else gets their memory.
    """

    packed: Packed
    buffer: _Buffer | None

    @property
    def is_there(self) -> bool:
        return self.buffer is None or self.buffer.copied.query()  # type: ignore[no-untyped-call]

    def arrays(self, num_rows: int) -> Arrays:
        """Wait for them; the first `num_rows` rows of each, once."""
        packed, arrays = self.packed, {}
        arrived = self._arrived()
        for name, (first, num_bytes, dtype, shape) in packed.fields.items():
            whole = arrived[first : first + num_bytes].view(dtype).reshape(shape)
            arrays[name] = whole[: shape[0] * num_rows // packed.num_rows] if shape else whole
        return arrays

    def _arrived(self) -> npt.NDArray[np.uint8]:
        buffer, flat = self.buffer, self.packed.flat
        if buffer is None:
            return flat.numpy().copy()
        buffer.copied.synchronize()
        arrived = buffer.bytes[: len(flat)].copy()
        _free_buffers(len(buffer.bytes)).append(buffer)
        return arrived


class HostCopy:
    """Copies device tensors to the host in the background; `arrays` waits for them.

    Args:
        tensors: by name, of one device; those of a CPU are taken as they are.
        packed: more of them, of which the first `num_rows` rows are copied.
    """

    def __init__(
        self, tensors: dict[str, torch.Tensor], packed: Packed | None = None, num_rows: int = 1
    ) -> None:
        self._on_host = tensors
        self._arriving: list[tuple[_Arriving, int]] = []
        if any(tensor.is_cuda for tensor in tensors.values()):
            self._on_host = {}
            self._arriving.append((Packed(tensors).begin_copy(), 1))
        if packed is not None:
            self._arriving.append((packed.begin_copy(), num_rows))

    @property
    def is_there(self) -> bool:
        """Whether `arrays` would not wait."""
        return all(arriving.is_there for arriving, _ in self._arriving)

    def arrays(self) -> Arrays:
        """The tensors as host arrays, by name; waits for the copy. Called once."""
        arrays = {name: tensor.numpy() for name, tensor in self._on_host.items()}
        while self._arriving:
            arriving, num_rows = self._arriving.pop()  # its buffer is given back once
            arrays |= arriving.arrays(num_rows)
        return arrays
