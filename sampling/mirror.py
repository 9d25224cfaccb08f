"""MirroredRows: host truth with a device mirror, published row by row without waiting."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class MirroredRows:
    """A table whose rows the host writes and the device reads.

    Attributes:
        np: the truth, [max_rows, *row_shape]; write it, then `touch` the row.
        tensor: the device's copy, as of the last `flush`.
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
        """Publish the touched rows on the current stream."""
        if not self._dirty:
            return
        index = np.fromiter(self._dirty, dtype=np.int64)
        self._dirty.clear()
        device = self.tensor.device
        # Indexing copies, so the host may write `np` again while the copy flies.
        self.tensor.index_copy_(0, to_device(index, device), to_device(self.np[index], device))


def to_device(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A fresh array as a device tensor; the copy does not wait, the array must not change."""
    tensor = torch.from_numpy(values)
    if device.type == "cpu":
        return tensor
    # torch's pinned allocator keeps the buffer until the copy has been made.
    return tensor.pin_memory().to(device, non_blocking=True)
