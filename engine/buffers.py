"""Moves small arrays between host and device without waiting, and issues device work."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sampling.device.mirror import Writes


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


def is_device_lost(error: Exception) -> bool:
    """Whether CUDA is beyond recovery: after an error in a kernel every call fails.

    Whoever calls next reports it, each library as an exception of its own.
    """
    if isinstance(error, torch.AcceleratorError):
        return True
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    try:
        torch.cuda.synchronize()
    except torch.AcceleratorError:
        return True
    return False


class HostStream:
    """The CPU's stand-in for a CUDA stream: what it is given runs in order, once one is waited for.

    So a step is planned before the one in front of it is computed, and what that drew is on its way
    before the next is, as beside a device. A thread of its own would compete with the host for the
    interpreter, and torch's threads with both for the cores: over HTTP that took half the speed.
    """

    def __init__(self) -> None:
        self._waiting: deque[_HostWork] = deque()

    def __call__(self, work: Any, *args: Any) -> Future[Any]:
        issued = _HostWork(self, work, args)
        self._waiting.append(issued)
        return issued

    def run_to(self, last: Future[Any]) -> None:
        """Run what was given up to `last`."""
        while not last.done():
            self._waiting.popleft().run()


class _HostWork(Future[Any]):
    """Work of a `HostStream` and its result."""

    def __init__(self, stream: HostStream, work: Any, args: tuple[Any, ...]) -> None:
        super().__init__()
        self._stream, self._work, self._args = stream, work, args

    def result(self, timeout: float | None = None) -> Any:
        """Its result, computed now if it was not; work that has begun is not timed out."""
        self._stream.run_to(self)
        return super().result(timeout)

    def run(self) -> None:
        _run(self, self._work, self._args)


class InlineLauncher:
    """Issues kernels in the calling thread; on CUDA they run behind it on the stream."""

    def __call__(self, work: Any, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        _run(future, work, args)
        return future


def _run(future: Future[Any], work: Any, args: tuple[Any, ...]) -> None:
    """Compute what a future is of, or keep what that raises."""
    try:
        future.set_result(work(*args))
    except Exception as error:
        future.set_exception(error)
