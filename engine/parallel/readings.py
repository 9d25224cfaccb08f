"""What the other ranks' readings of adapters come to, as rank 0 is told. No torch."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future

import msgspec

from engine.contracts.adapters import AdapterSource, why_unread
from engine.contracts.runner import RunnerLostError
from engine.errors import AdapterError


class RankReading(msgspec.Struct, frozen=True):
    """How a rank's reading of an adapter ended.

    Attributes:
        number: of the adapter.
        digest: of what was read.
        error: why there is nothing; None where there is.
    """

    number: int
    digest: bytes = b""
    error: str | None = None

    @classmethod
    def of(cls, number: int, source: AdapterSource, reading: Future[bytes]) -> RankReading:
        """The report of a reading that has ended."""
        error = reading.exception()
        if error is None:
            return cls(number, reading.result())
        return cls(number, error=why_unread(source.path, error))


class RankReadings:
    """The readings that other ranks have yet to report. Any thread may use it.

    Args:
        size: number of ranks, with rank 0.
    """

    def __init__(self, size: int) -> None:
        self._ranks = range(1, size)
        self._lock = threading.Lock()
        self._pending: dict[tuple[int, int], Future[bytes]] = {}
        self._lost: str | None = None

    def begin(self, number: int) -> list[Future[bytes]]:
        """The readings of an adapter that all of them are told to read next, by rank."""
        begun = {(rank, number): Future[bytes]() for rank in self._ranks}
        with self._lock:
            self._pending |= begun
            lost = self._lost
        if lost is not None:
            self.lose(lost)
        return list(begun.values())

    def end(self, rank: int, report: RankReading) -> None:
        """Take in what a rank reports."""
        with self._lock:
            reading = self._pending.pop((rank, report.number), None)
        if reading is None:  # a rank was lost before
            return
        if report.error is None:
            reading.set_result(report.digest)
        else:
            reading.set_exception(AdapterError(f"rank {rank}: {report.error}"))

    def lose(self, reason: str) -> None:
        """Let nobody wait for readings: a rank is lost, and with it the engine."""
        with self._lock:
            self._lost = reason
            pending, self._pending = self._pending, {}
        for reading in pending.values():
            reading.set_exception(RunnerLostError(reason))


def joined(source: AdapterSource, readings: Sequence[Future[bytes]]) -> Future[bytes]:
    """One reading of those of all ranks, which are in order; it ends with the last of them.

    It raises what the first of them raised, and `AdapterError` where they read different files.
    """
    whole: Future[bytes] = Future()
    lock, left = threading.Lock(), len(readings)

    def end(_: Future[bytes]) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        if (error := _fault(source, readings)) is None:
            whole.set_result(readings[0].result())
        else:
            whole.set_exception(error)

    for reading in readings:
        reading.add_done_callback(end)
    return whole


def _fault(source: AdapterSource, readings: Sequence[Future[bytes]]) -> BaseException | None:
    """Why readings that have ended are not one of all ranks, if they are not."""
    for reading in readings:
        if (error := reading.exception()) is not None:
            return error
    if len({reading.result() for reading in readings}) > 1:
        return AdapterError(f"{source.path} was written while it was read: load it again")
    return None
