"""The requests of one client process, sent as one pass of a workload asks."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.bench.events import EventTimes
from server.bench.exchange import Connections, Exchange
from server.bench.target import Target

PROGRESS_S = 0.2
"""Seconds between two reports of how far a pass is."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one process does in a pass.

    Attributes:
        requests: every request of the pass, as bytes; processes take them in turn.
        slots: how many of them this process has under way at once.
        arrivals: seconds after the start at which each request is sent, where they come at a rate;
            only those whose index is `first` or `step`, 2 `step`, ... after it are this process's.
    """

    target: Target
    requests: Sequence[bytes]
    is_streamed: bool
    timeout_s: float
    slots: int
    arrivals: Sequence[float] | None = None
    first: int = 0
    step: int = 1


@dataclass(frozen=True, kw_only=True)
class LoadProgress:
    """How far a pass is: requests that ended, those of them that failed, tokens that came."""

    done: int = 0
    failed: int = 0
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class ShareResult:
    """What came of a share.

    Attributes:
        seconds: from the start of the pass to the end of the last reply.
        busy: the share of that time that the process computed, 0 to 1.
    """

    exchanges: list[Exchange]
    seconds: float
    busy: float


Report = Callable[[LoadProgress], None]
Take = Callable[[], int]
"""The index of the next request that no process has taken."""


async def run_share(share: Share, start: float, take: Take, report: Report) -> ShareResult:
    """Send the requests of a share.

    Args:
        start: when to begin, on the clock `time.monotonic`.
        report: called with how far it is, every PROGRESS_S.
    """
    gc.collect()
    gc.freeze()  # a collection here would look like a stall there
    run = _Run(share, start, take)
    await asyncio.sleep(start - time.monotonic())
    began_cpu = time.process_time()
    reporting = asyncio.create_task(_report(run, report))
    try:
        await (run.at_once() if share.arrivals is None else run.as_they_arrive(share.arrivals))
    finally:
        reporting.cancel()
        run.connections.close()
        gc.unfreeze()
    ends = (exchange.sent_s + exchange.seconds for exchange in run.exchanges)
    seconds = max(ends, default=start) - start
    busy = (time.process_time() - began_cpu) / max(seconds, 1e-9)
    return ShareResult(exchanges=run.exchanges, seconds=seconds, busy=min(busy, 1.0))


async def _report(run: _Run, report: Report) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        report(run.progress)


class _Run:
    """A pass as this process sees it."""

    def __init__(self, share: Share, start: float, take: Take) -> None:
        self.connections = Connections(share.target)
        self.exchanges: list[Exchange] = []
        self._share = share
        self._start = start
        self._take = take
        self._streams: set[EventTimes] = set()

    @property
    def progress(self) -> LoadProgress:
        """How far it is; of streams that have not ended, chunks count as tokens."""
        ended = self.exchanges
        failed = sum(exchange.error is not None for exchange in ended)
        tokens = sum(exchange.output_tokens for exchange in ended)
        tokens += sum(stream.num_events for stream in self._streams)
        return LoadProgress(done=len(ended), failed=failed, tokens=tokens)

    async def at_once(self) -> None:
        """Keep every slot busy until no request is left."""
        await asyncio.gather(*(self._slot() for _ in range(self._share.slots)))

    async def _slot(self) -> None:
        while (index := self._take()) < len(self._share.requests):
            await self._send(index)

    async def as_they_arrive(self, arrivals: Sequence[float]) -> None:
        """Send each request when it is due."""
        tasks = []
        for index in range(self._share.first, len(arrivals), self._share.step):
            await asyncio.sleep(max(0.0, self._start + arrivals[index] - time.monotonic()))
            tasks.append(asyncio.create_task(self._send(index)))
        await asyncio.gather(*tasks)

    async def _send(self, index: int) -> None:
        share = self._share
        times = EventTimes() if share.is_streamed else None
        if times is not None:
            self._streams.add(times)
        exchange = await self.connections.exchange(share.requests[index], share.timeout_s, times)
        if times is not None:
            self._streams.discard(times)
        self.exchanges.append(exchange)
