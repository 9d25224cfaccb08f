"""Issues a step's device work: on a CPU in order and late, on a GPU at once."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any

import torch


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
    """Issues kernels in the calling thread; on CUDA they run after it on the stream."""

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
