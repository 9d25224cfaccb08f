"""Moves small arrays between host and device without waiting, and issues device work."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from sampling.mirror import to_device


class StagedWrites:
    """Gathers scattered integer writes to a device tensor on the host; one copy publishes them.

    Later writes to one place within a flush are undefined; callers write a place once a step.
    """

    def __init__(self, target: torch.Tensor) -> None:
        self.target = target
        self._flat = target.view(-1)
        self._width = target.stride(0) if target.dim() > 1 else 1
        self._firsts: list[int] = []
        self._values: list[npt.NDArray[np.int64]] = []

    def stage(self, row: int, start: int, values: npt.ArrayLike) -> None:
        """Write `values` [n] to target[row, start : start + n] at the next flush."""
        self._firsts.append(row * self._width + start)
        self._values.append(np.asarray(values, dtype=np.int64))

    def flush(self) -> None:
        """Publish what was staged, in stream order."""
        if not self._firsts:
            return
        counts = np.array([len(values) for values in self._values])
        ends = np.cumsum(counts)
        places = np.arange(ends[-1]) + np.repeat(np.array(self._firsts) + counts - ends, counts)
        together = to_device(np.concatenate([places, *self._values]), self.target.device)
        values = together[len(places) :].to(self.target.dtype)
        self._flat.index_copy_(0, together[: len(places)], values)
        self._firsts.clear()
        self._values.clear()


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


class Launcher(Protocol):
    """Issues a step's device work, at once or behind what was issued before."""

    def __call__(self, work: Any, *args: Any) -> Future[Any]: ...


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
