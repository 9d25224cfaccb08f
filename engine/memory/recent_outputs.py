"""Recent outputs of the server on the device, for drafters that read them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from engine.arrays import Int32Array
from engine.plan import Admission
from sampling.device.mirror import Writes

CAPACITY = 1 << 18
"""Tokens that are kept at most, 1 MiB of them."""
END = -1
"""Comes before and after each output."""


class RecentOutputs:
    """Owns the outputs kept of requests that ended, first in, first out.

    Attributes:
        tokens: int32 [capacity], a ring; `END` between outputs and where none is.
        readers: int32 [max_rows + 1], 1 for rows that may read them.

    Args:
        max_outputs: outputs kept at most.
    """

    def __init__(
        self, max_outputs: int, max_rows: int, device: torch.device, capacity: int = CAPACITY
    ) -> None:
        self.tokens = torch.full((capacity,), END, dtype=torch.int32, device=device)
        self.readers = torch.zeros(max_rows + 1, dtype=torch.int32, device=device)
        self._max_outputs = max_outputs
        self._capacity = capacity
        self._kept: deque[tuple[int, int]] = deque()  # where each begins, and its places
        self._used = 0
        self._end = 0

    def take(self, outputs: Sequence[Int32Array], admissions: Sequence[Admission]) -> list[Writes]:
        """Keep outputs, drop the oldest for them, and note which rows read.

        Returns:
            What is to be published before the step; the order matters.
        """
        writes = []
        for output in outputs:
            writes += self._keep(output[: self._capacity // 2])
        if admissions:
            rows = np.array([each.row for each in admissions], dtype=np.int64)
            reads = np.array([each.reads_outputs for each in admissions], dtype=np.int32)
            writes.append(Writes(self.readers, rows, reads))
        return writes

    def _keep(self, output: Int32Array) -> list[Writes]:
        size, writes = len(output) + 1, []
        while self._kept and (
            len(self._kept) >= self._max_outputs or self._used + size > self._capacity
        ):
            begin, dropped = self._kept.popleft()
            self._used -= dropped
            writes.append(Writes(self.tokens, self._places(begin, dropped), END))
        places = self._places(self._end, size)
        writes.append(Writes(self.tokens, places, np.append(output, np.int32(END))))
        self._kept.append((self._end, size))
        self._used, self._end = self._used + size, (self._end + size) % self._capacity
        return writes

    def _places(self, begin: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return (begin + np.arange(size, dtype=np.int64)) % self._capacity
