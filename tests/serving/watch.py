"""Times of a server on a machine that others use too: what they take from it is not counted."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import psutil

from tests.serving.process import Server

FRESH_S = 0.005
"""Seconds for which processor times are not read again; the system counts them in 0.01 s."""


class Moment(NamedTuple):
    """A time, and processor times of the machine until then, all in seconds."""

    wall: float
    own: float
    """Of the server and its engine."""
    others: float
    waits: tuple[float, ...]
    """In which the main thread of each, and of this process, waited for a processor."""


class Watch:
    """Tells how long a server took for what it did."""

    def __init__(self, server: Server) -> None:
        self._processes = [psutil.Process(server.process.pid), server.engine]
        self._read = Moment(0.0, 0.0, 0.0, ())

    def now(self) -> Moment:
        """This moment."""
        wall = time.perf_counter()
        if wall - self._read.wall > FRESH_S:
            own = sum(sum(process.cpu_times()[:2]) for process in self._processes)
            machine = psutil.cpu_times()
            others = sum(machine) - machine.idle - machine.iowait - own
            pids = (*(process.pid for process in self._processes), os.getpid())
            self._read = Moment(wall, own, others, tuple(map(_waited, pids)))
        return self._read._replace(wall=wall)

    def since(self, began: Moment) -> float:
        """Seconds since a moment, but for those in which the server may have waited for others.

        It waited for no longer than others computed. On a machine where others computed all the
        time it took no longer than it computed itself, nor than is left without the wait for a
        processor of the one that waited longest. On an idle machine these are just the seconds that
        passed.
        """
        now = self.now()
        wall, own, others = now.wall - began.wall, now.own - began.own, now.others - began.others
        waited = max(late - early for late, early in zip(now.waits, began.waits, strict=True))
        return max(wall - others, min(wall - waited, own))


def _waited(pid: int) -> float:
    """Seconds that a process's main thread has waited for a processor."""
    with open(f"/proc/{pid}/task/{pid}/schedstat") as schedstat:
        return int(schedstat.read().split()[1]) / 1e9
