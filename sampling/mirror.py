"""Copying small host arrays to the device without waiting, whole or row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class MirroredRows:
    """A table that the host writes row by row, and a copy of it that the device reads.

    Attributes:
        np: the host's table, [max_rows, *row_shape]; write it, then `touch` the row.
        tensor: the device's copy, as of the last `flush`; it never moves, so graphs may hold it.
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
        """Mark a row for the next flush."""
        self._dirty.add(row)

    def flush(self) -> None:
        """Copy the touched rows to the device, on the current stream; `np` may be written again."""
        if not self._dirty:
            return
        index = np.fromiter(self._dirty, dtype=np.int64)
        self._dirty.clear()
        device = self.tensor.device
        self.tensor.index_copy_(0, to_device(index, device), to_device(self.np[index], device))


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copy a host array to the device in stream order; the array may be reused at once."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor.clone()
    # The caching host allocator keeps the pinned copy until the transfer's event has passed.
    return tensor.pin_memory().to(device, non_blocking=True)
