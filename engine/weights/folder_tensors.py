"""Tensors of a folder, read as they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open

from engine.contracts.named_weights import TensorInfo
from engine.contracts.weights import WeightUpdateError
from engine.models.weights.sources import weight_files
from engine.models.weights.stored import TORCH_TYPES

NUM_THREADS = 4
"""Threads that read ahead: one thread copies from the page cache more slowly than a GPU takes."""
AHEAD_BYTES = 1 << 30
"""Bytes of tensors that are read ahead at most, and one tensor more."""


class StoredTensor(NamedTuple):
    """A tensor of a file that is open."""

    name: str
    info: TensorInfo
    file: Any

    @property
    def num_bytes(self) -> int:
        """Bytes of its numbers."""
        return prod(self.info.shape) * self.info.dtype.itemsize


class FolderTensors:
    """The tensors of a folder's safetensors files.

    They are asked for mostly in order. Where they are copied to a GPU, threads read the next ones
    into pinned memory meanwhile.

    Args:
        device: that they will be copied to.

    Attributes:
        stored: what there is, in order.

    Raises:
        WeightUpdateError: there is no such folder.
        ModelError: it has no weights, or not those of its index.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        if not folder.is_dir():
            words = f"{str(folder)!r} is no folder that this server sees"
            raise WeightUpdateError(words, "bad_source")
        self.stored = [each for path in weight_files(folder) for each in _tensors_of(path)]
        self._threads: ThreadPoolExecutor | None = None
        if device.type == "cuda":
            self._threads = ThreadPoolExecutor(NUM_THREADS, "read-weights")
        self._ahead: dict[int, Future[torch.Tensor]] = {}
        self._next, self._num_bytes = 0, 0
        self._last: tuple[int, torch.Tensor] | None = None

    def read(self, index: int) -> torch.Tensor:
        """The numbers of a tensor of `stored`, on the host."""
        if self._threads is None:
            return self._view(index)
        if self._last is None or self._last[0] != index:
            self._last = index, self._read_ahead(self._threads, index)
        return self._last[1]

    def _read_ahead(self, threads: ThreadPoolExecutor, index: int) -> torch.Tensor:
        if index not in self._ahead:
            if self._ahead and index < self._next:
                return self._pinned(index)
            self._next = index
        while self._ahead and (first := next(iter(self._ahead))) < index:
            self._take(first)
        while self._next < len(self.stored) and (
            self._num_bytes < AHEAD_BYTES or self._next == index
        ):
            self._ahead[self._next] = threads.submit(self._pinned, self._next)
            self._num_bytes += self.stored[self._next].num_bytes
            self._next += 1
        return self._take(index).result()

    def _take(self, index: int) -> Future[torch.Tensor]:
        self._num_bytes -= self.stored[index].num_bytes
        return self._ahead.pop(index)

    def _view(self, index: int) -> torch.Tensor:
        tensor: torch.Tensor = self.stored[index].file.get_tensor(self.stored[index].name)
        return tensor

    def _pinned(self, index: int) -> torch.Tensor:
        return self._view(index).pin_memory()


def _tensors_of(path: Path) -> Iterator[StoredTensor]:
    file: Any = safe_open(path, framework="pt")
    for name in file.keys():  # noqa: SIM118 (not a dictionary)
        own = file.get_slice(name)
        info = TensorInfo(tuple(own.get_shape()), TORCH_TYPES[own.get_dtype()])
        yield StoredTensor(name, info, file)
