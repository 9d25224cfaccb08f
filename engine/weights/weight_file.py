"""A safetensors file that is read while others may write it.

It is not mapped into memory: reading a part that was cut off since would end the process (SIGBUS).
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from engine.contracts.named_weights import TensorInfo
from engine.contracts.weights import WeightUpdateError
from engine.errors import kind_and_line
from engine.models.weights.stored import TORCH_TYPES

LENGTH_BYTES = 8
"""Of the header's length, with which a file begins."""
MAX_HEADER = 100_000_000
"""Bytes of a header at most, as safetensors has it."""


class _Written(NamedTuple):
    """What tells whether a file was written; its name and links may change."""

    size: int
    time_ns: int


class FileTensor(NamedTuple):
    """A tensor of a file; `start` is the place of its bytes."""

    name: str
    info: TensorInfo
    start: int


class WeightFile:
    """A file that stays open, so that it is read to the end also where another takes its name.

    Attributes:
        tensors: in the order of their bytes.

    Raises:
        WeightUpdateError: it is no safetensors file.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)
        self._written = self._stat()
        try:
            self.tensors = self._tensors()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            words = f"{path} is no safetensors file: {kind_and_line(error)}"
            raise WeightUpdateError(words, "bad_source") from error

    def _tensors(self) -> list[FileTensor]:
        length = int.from_bytes(self._bytes(0, LENGTH_BYTES), "little")
        start = LENGTH_BYTES + length
        if length > MAX_HEADER or start > self._written.size:
            raise ValueError(f"a header of {length} bytes in {self._written.size}")
        header: Mapping[str, Any] = json.loads(self._bytes(LENGTH_BYTES, length))
        tensors = [
            self._tensor(name, fields, start)
            for name, fields in header.items()
            if name != "__metadata__"
        ]
        return sorted(tensors, key=lambda tensor: tensor.start)

    def _tensor(self, name: str, fields: Mapping[str, Any], start: int) -> FileTensor:
        if fields["dtype"] not in TORCH_TYPES:
            raise ValueError(f"tensor {name!r} has dtype {fields['dtype']}, which is not known")
        info = TensorInfo(tuple(fields["shape"]), TORCH_TYPES[fields["dtype"]])
        first, end = fields["data_offsets"]
        num_bytes = prod(info.shape) * info.dtype.itemsize
        if not 0 <= first <= end <= self._written.size - start or end - first != num_bytes:
            raise ValueError(
                f"tensor {name!r} of {num_bytes} bytes has places {first} to {end} of "
                f"{self._written.size - start}"
            )
        return FileTensor(name, info, start + first)

    def read(self, tensor: FileTensor, target: torch.Tensor) -> None:
        """Overwrite a tensor on the host by one of `tensors`.

        Raises:
            WeightUpdateError: the file was written since it was opened.
        """
        raw = target.view(-1).view(torch.uint8)
        self._fill(raw.numpy().data, tensor.start)
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise `WeightUpdateError` where the file was written since it was opened."""
        if self._stat() != self._written:
            raise self._changed()

    def _bytes(self, start: int, length: int) -> bytes:
        raw = bytearray(length)
        self._fill(memoryview(raw), start)
        return bytes(raw)

    def _fill(self, target: memoryview, start: int) -> None:
        done = 0
        while done < len(target):
            count = os.preadv(self._fd, [target[done:]], start + done)
            if not count:
                raise self._changed()
            done += count

    def _stat(self) -> _Written:
        found = os.fstat(self._fd)
        return _Written(found.st_size, found.st_mtime_ns)

    def _changed(self) -> WeightUpdateError:
        words = f"{self._path} was written while it was read: begin the update again"
        return WeightUpdateError(words, "bad_source")
