"""Tensors of a folder, read as they are asked for."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch

from engine.contracts.named_weights import TensorInfo
from engine.contracts.weights import WeightUpdateError
from engine.models.weights.sources import weight_files
from engine.weights.weight_file import FileTensor, WeightFile

NUM_THREADS = 4
"""Threads that read ahead: one thread copies from the page cache more slowly than a GPU takes."""
AHEAD_BYTES = 1 << 30
"""Bytes of tensors that are read ahead at most, and one tensor more."""


class StoredTensor(NamedTuple):
    """A tensor of a file that is open."""

    place: FileTensor
    file: WeightFile

    @property
    def name(self) -> str:
        """Its name in the file."""
        return self.place.name

    @property
    def info(self) -> TensorInfo:
        """Its shape and type."""
        return self.place.info

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
        WeightUpdateError: there is no such folder, or a file in it is no safetensors file.
        ModelError: it has no weights, or not those of its index.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        if not folder.is_dir():
            words = f"{str(folder)!r} is no folder that this server sees"
            raise WeightUpdateError(words, "bad_source")
        self._files = [WeightFile(path) for path in weight_files(folder)]
        self.stored = [StoredTensor(each, file) for file in self._files for each in file.tensors]
        self._threads: ThreadPoolExecutor | None = None
        if device.type == "cuda":
            self._threads = ThreadPoolExecutor(NUM_THREADS, "read-weights")
        self._ahead: dict[int, Future[torch.Tensor]] = {}
        self._next, self._num_bytes = 0, 0
        self._last: tuple[int, torch.Tensor] | None = None

    def read(self, index: int) -> torch.Tensor:
        """The numbers of a tensor of `stored`, on the host.

        Raises:
            WeightUpdateError: its file was written since it was opened.
        """
        if self._last is None or self._last[0] != index:
            threads = self._threads
            values = self._read(index) if threads is None else self._read_ahead(threads, index)
            self._last = index, values
        return self._last[1]

    def check_unchanged(self) -> None:
        """Raise `WeightUpdateError` where a file was written since it was opened."""
        for file in self._files:
            file.check_unchanged()

    def _read_ahead(self, threads: ThreadPoolExecutor, index: int) -> torch.Tensor:
        if index not in self._ahead:
            if self._ahead and index < self._next:
                return self._read(index)
            self._next = index
        while self._ahead and (first := next(iter(self._ahead))) < index:
            self._take(first)
        while self._next < len(self.stored) and (
            self._num_bytes < AHEAD_BYTES or self._next == index
        ):
            self._ahead[self._next] = threads.submit(self._read, self._next)
            self._num_bytes += self.stored[self._next].num_bytes
            self._next += 1
        return self._take(index).result()

    def _take(self, index: int) -> Future[torch.Tensor]:
        self._num_bytes -= self.stored[index].num_bytes
        return self._ahead.pop(index)

    def _read(self, index: int) -> torch.Tensor:
        tensor = self.stored[index]
        values = self._memory(tensor.info)
        tensor.file.read(tensor.place, values)
        return values

    def _memory(self, info: TensorInfo) -> torch.Tensor:
        """Where a tensor is read to: from pinned memory a GPU copies it directly."""
        return torch.empty(info.shape, dtype=info.dtype, pin_memory=self._threads is not None)
