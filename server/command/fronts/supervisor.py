"""The supervisor's side of several fronts: start them, restart those that die, end them as one.

The supervisor owns the engine process, the listening socket and the table of the fronts, so nothing
is lost with a front but the requests it had taken: the engine aborts these once the front is
silent, and connections that nobody has accepted yet wait in the socket for the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from asyncio.subprocess import PIPE, Process
from typing import Any

import msgspec

from engine.config import ConfigError
from engine.parallel.programs import command_of
from engine.parent import EngineProcess, end_of
from engine.submission import EngineDeadError
from server.command.fronts.front_lines import (
    Answering,
    Attach,
    Drain,
    Drained,
    End,
    EngineFailure,
    FailAll,
    FrontStart,
    Loaded,
    StartFailed,
    ToFront,
    ToSupervisor,
)
from server.fronts import FrontTable
from server.http.admission import ShutdownError
from server.metrics import SHARED_FOLDER

logger = logging.getLogger("tailrace")

RESTART_S = 0.5
"""How long to wait before a front that died is started again, twice as long after each death."""
MAX_DEATHS, DEATHS_S = 5, 60.0
"""So many deaths of fronts within so many seconds are survived; one more ends the server."""
CLOSE_S = 8.0
"""Seconds closing fronts may take before they are killed."""
BACKLOG = 2048
"""Connections that may wait until a front accepts them."""
MARGIN_S = 1.0
"""Seconds beyond its own limit in which a draining front says that it has reached it."""
FOLLOW_S = 0.2
"""Seconds between two looks at the engine's heartbeat."""

COMMAND = command_of("server.command.fronts.front_process")
"""The command that starts a front."""

_decoder: msgspec.json.Decoder[ToSupervisor] = msgspec.json.Decoder(ToSupervisor)


class _Child:
    """One front's process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.loaded = asyncio.Event()
        self.answering = asyncio.Event()
        self.drained: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.failure: str | None = None

    def send(self, line: FrontStart | ToFront) -> None:
        assert self.process.stdin is not None
        if not self.process.stdin.is_closing():
            self.process.stdin.write(msgspec.json.encode(line) + b"\n")

    async def follow(self) -> int:
        """Hear what it says until it ends; returns its exit status."""
        assert self.process.stdout is not None
        async for raw in self.process.stdout:
            match _decoder.decode(raw):
                case Loaded():
                    self.loaded.set()
                case Answering():
                    self.answering.set()
                case Drained(in_time):
                    self._drained(in_time)
                case StartFailed(message):
                    self.failure = message
        status = await self.process.wait()
        self._drained(in_time=True)
        return status

    def abandon(self) -> None:
        """Let it end at once, as when the supervisor dies."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    def _drained(self, in_time: bool) -> None:
        if not self.drained.done():
            self.drained.set_result(in_time)


class Fronts:
    """Several fronts in processes of their own, with the manners of one `Front`."""

    def __init__(
        self,
        starts: list[FrontStart],
        listener: socket.socket,
        table: FrontTable,
        folder: str,
    ) -> None:
        """Make them, not started yet.

        Args:
            listener: the socket from which all of them accept.
            table: the table of the fronts, which they share.
            folder: where the fronts count for the metrics.
        """
        self._starts = starts
        self._listener = listener
        self._table = table
        self._environment = {**os.environ, SHARED_FOLDER: folder}
        self._children: list[_Child] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._attach: Attach | None = None
        self._engine_failure = EngineFailure(None, False)
        self._started = False
        self._ending = asyncio.Event()
        self._deaths: list[float] = []
        self._too_many_deaths = asyncio.Event()
        self._start_failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def load(self) -> None:
        """Start the processes and wait until each has loaded what needs no engine; raises
        `ConfigError`."""
        for start in self._starts:
            self._children.append(await self._spawn(start))
        self._tasks += [asyncio.create_task(self._keep(i)) for i in range(len(self._starts))]
        await self._wait_for([child.loaded for child in self._children])

    async def attach(self, engine: EngineProcess) -> None:
        """Let the fronts answer over an engine, and wait until all do; raises `ConfigError`."""
        self._listener.listen(BACKLOG)
        self._attach = Attach(engine.info, engine.pid, engine.address)
        self._tell_all(self._attach)
        self._tasks.append(asyncio.create_task(self._follow_engine(engine)))
        await self._wait_for([child.answering for child in self._children])
        self._started = True

    async def _wait_for(self, events: list[asyncio.Event]) -> None:
        waiting = asyncio.gather(*(event.wait() for event in events))
        either: set[asyncio.Future[Any]] = {waiting, self._start_failed}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        if self._start_failed.done():
            raise ConfigError(self._start_failed.result())

    async def ended(self) -> None:
        """Wait until too many of them have died."""
        await self._too_many_deaths.wait()

    async def drain(self, timeout_s: float) -> bool:
        """Let every front refuse new requests, and wait for open ones; as `Front.drain`."""
        self._ending.set()
        self._tell_all(Drain(timeout_s))
        drained = [child.drained for child in self._children]
        await asyncio.wait(drained, timeout=timeout_s + MARGIN_S)
        return all(each.done() and each.result() for each in drained)

    def fail_all(self, error: EngineDeadError) -> None:
        """Answer every open request of every front with an error."""
        self._tell_all(FailAll(None if isinstance(error, ShutdownError) else str(error)))

    async def close(self) -> None:
        """End every front, and wait until all are gone."""
        self._ending.set()
        if self._attach is not None:
            self._tell_all(End())
        else:
            for child in self._children:
                child.abandon()
        ends = [asyncio.create_task(child.process.wait()) for child in self._children]
        _, late = await asyncio.wait(ends, timeout=CLOSE_S)
        if late:
            logger.warning("%d fronts did not end within %g s and are killed", len(late), CLOSE_S)
        for child in self._children:
            child.kill()
        await asyncio.gather(*ends)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- the processes ------------------------------------------------------------------------

    async def _spawn(self, start: FrontStart) -> _Child:
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=PIPE,
            stdout=PIPE,
            env=self._environment,
            pass_fds=(start.listener_fd, start.table_fd),
        )
        child = _Child(process)
        child.send(start)
        if self._attach is not None:
            child.send(self._attach)
            child.send(self._engine_failure)
        return child

    async def _keep(self, index: int) -> None:
        """Hear what a front says, and start it again when it dies, unless too many have died."""
        while True:
            child = self._children[index]
            status = await child.follow()
            self._table.clear(index)
            if self._ending.is_set():
                return
            if not (self._started or child.answering.is_set()):
                self._give_up_start(child, status)
                return
            pause_s = self._pause_after_death()
            end = end_of(status) if child.failure is None else f"ended ({child.failure})"
            words = "front %d %s, with the requests it had taken; "
            if pause_s is None:
                logger.error(words + "too many have, so the server ends", index, end)
                self._too_many_deaths.set()
                return
            logger.error(words + "starting another in %g s", index, end, pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), pause_s)
                return
            self._children[index] = await self._spawn(self._starts[index])
            if self._ending.is_set():
                self._children[index].abandon()

    def _give_up_start(self, child: _Child, status: int) -> None:
        ended = f"a front {end_of(status)} while starting; the log lines above say why"
        if not self._start_failed.done():
            self._start_failed.set_result(child.failure or ended)

    def _pause_after_death(self) -> float | None:
        """How long to wait before a front that just died is started again; None for ever."""
        now = time.monotonic()
        self._deaths = [*(at for at in self._deaths if now - at < DEATHS_S), now]
        num_deaths = len(self._deaths)
        return RESTART_S * 2.0 ** (num_deaths - 1) if num_deaths <= MAX_DEATHS else None

    # -- lines --------------------------------------------------------------------------------

    def _tell_all(self, line: ToFront) -> None:
        for child in self._children:
            child.send(line)

    async def _follow_engine(self, engine: EngineProcess) -> None:
        """Tell the fronts whether the engine can serve, until it has ended."""
        while not self._engine_failure.ended:
            await asyncio.wait({engine.ended}, timeout=FOLLOW_S)
            failure = EngineFailure(engine.failure(), engine.ended.done())
            if failure != self._engine_failure:
                self._engine_failure = failure
                self._tell_all(failure)
