"""The client processes: one process cannot read what a fast server writes.

Each is started once and then does its share of every pass. They draw from one counter of requests,
so that none is idle while another has work left.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import Synchronized

import uvloop

from server.bench.load import LoadProgress, Report, Share, ShareResult, run_share

LEAD_S = 0.05
"""All processes get the time to begin this long before they do."""


class ClientProcesses:
    """A number of processes that send requests together."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._next: Synchronized[int] = context.Value("q", 0)
        self._connections: list[Connection] = []
        self._processes = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, self._next), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def run(self, shares: Sequence[Share], report: Report) -> list[ShareResult]:
        """Do one pass: a share for each process, or for the first of them.

        Args:
            report: called with how far all of them are together.

        Raises:
            RuntimeError: a process ended.
        """
        self._next.value = 0
        busy = self._connections[: len(shares)]
        try:
            for connection, share in zip(busy, shares, strict=True):
                connection.send(share)
            for connection in busy:
                connection.recv()  # it has read its share
            start = time.monotonic() + LEAD_S
            for connection in busy:
                connection.send(start)
            return _collect(busy, report)
        except (EOFError, ConnectionError):
            raise RuntimeError("a client process ended before its requests did") from None

    def close(self) -> None:
        """End all processes, whatever they do."""
        for process, connection in zip(self._processes, self._connections, strict=True):
            process.kill()
            process.join()
            process.close()
            connection.close()

    def __enter__(self) -> ClientProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _collect(connections: list[Connection], report: Report) -> list[ShareResult]:
    """What the processes send until each has a result."""
    progress = dict.fromkeys(connections, LoadProgress())
    results: list[ShareResult] = []
    left = set(connections)
    while left:
        for ready in wait(list(left)):
            assert isinstance(ready, Connection)
            message = ready.recv()
            if isinstance(message, ShareResult):
                results.append(message)
                left.discard(ready)
            else:
                progress[ready] = message
        now = progress.values()
        report(
            LoadProgress(
                done=sum(each.done for each in now),
                failed=sum(each.failed for each in now),
                tokens=sum(each.tokens for each in now),
            )
        )
    return results


def _work(connection: Connection, counter: Synchronized[int]) -> None:
    """Do shares until the parent hangs up: a process's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to answer
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def report(progress: LoadProgress) -> None:
        try:
            connection.send(progress)
        except OSError:
            os._exit(1)  # the parent is gone, and the pass is for nobody

    def take() -> int:
        with counter.get_lock():
            index: int = counter.value
            counter.value = index + 1
        return index

    with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):
        while True:
            share = connection.recv()
            connection.send(None)
            start = connection.recv()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                connection.send(runner.run(run_share(share, start, take, report)))
