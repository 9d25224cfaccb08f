"""The frontend's side of the engine: submit to it, abort, notice when it is gone.

The server is written against `EngineHandle`. `EngineClient` is the handle of an engine process;
tests use a fake.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from typing import Protocol

import zmq

from engine.awake import LATE_S, AwakeClock
from engine.config import EngineConfig
from engine.contracts.control import AnyCommand, ControlReply, ControlRequest, EngineState
from engine.contracts.info import EngineInfo
from engine.errors import ControlError
from engine.messages.codec import decode_output, encode
from engine.messages.request import FrontendMessage, Request, ScoringRequest
from engine.messages.step_output import StepOutput
from engine.parent import EngineProcess
from engine.progress import Listener
from engine.stats import EngineStats
from engine.submission import EngineDeadError, Entry, Submission, deliver_output

__all__ = [
    "EngineClient",
    "EngineDeadError",
    "EngineHandle",
    "Entry",
    "Submission",
    "deliver_output",
]

logger = logging.getLogger("tailrace")

BEAT_S = 0.5
"""Seconds between the messages that show the engine that its frontend is alive."""

_READABLE = int(zmq.POLLIN)
"""A plain number: to look into a flag of an enum takes as long as to ask the socket."""

MAX_HELD = 8
"""Requests of one turn of the event loop that go in one message at most. The engine begins with
these while a burst of hundreds is still being read."""


class EngineHandle(Protocol):
    """An engine, as the server sees it.

    Attributes:
        info: the engine's description of itself.
        stats: the latest statistics that came with an output; None before the first.
        state: what holds the engine, as it last reported.
    """

    info: EngineInfo
    stats: EngineStats | None
    state: EngineState

    def new_handle(self) -> int:
        """A request handle not in use."""
        ...

    def submit(self, request: Request) -> Submission:
        """Send a request, never blocking; raises `EngineDeadError` if the engine is gone."""
        ...

    def score(self, request: ScoringRequest) -> Submission:
        """Send a scoring request; as `submit`."""
        ...

    def abort(self, handle: int, choice: int = -1) -> None:
        """End one choice, or all with -1. The submission still sees each choice's end."""
        ...

    async def control(self, command: AnyCommand) -> ControlReply:
        """Send a command and wait for its end.

        Raises:
            ControlError: it was not followed.
            EngineDeadError: the engine is gone.
        """
        ...

    def failure(self) -> str | None:
        """Why the engine cannot serve (dead, or no heartbeat); None while it can."""
        ...

    async def close(self) -> None:
        """Stop the engine and wait for it to be gone."""
        ...


class EngineLink(Protocol):
    """What a frontend knows of the engine process that it does not learn from the socket.

    Attributes:
        info: the engine's description of itself.
        pid: the id of the process.
        address: where frontends connect.
        ended: gets the reason when the process has ended.
    """

    info: EngineInfo
    pid: int
    address: str
    ended: asyncio.Future[str]

    def failure(self) -> str | None:
        """Why the engine cannot serve; None while it can."""
        ...

    async def close(self) -> None:
        """Give the engine up."""
        ...


class EngineClient:
    """The socket to an engine process, whose end or silence `link` reports."""

    def __init__(self, link: EngineLink) -> None:
        self.info = link.info
        self.stats: EngineStats | None = None
        self.state = EngineState(adapters=link.info.adapters or ())
        self._link = link
        self._commands: dict[int, asyncio.Future[ControlReply]] = {}
        self._submissions: dict[int, Submission] = {}
        self._handles = itertools.count(1)
        self._message = FrontendMessage()
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.set_hwm(0)  # so that sending never waits
        self._socket.setsockopt(zmq.IDENTITY, uuid.uuid4().bytes)
        self._socket.connect(link.address)
        # Not by zmq's own futures, which cost more than what is done with a message.
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._receive)
        self._tasks = [asyncio.create_task(each) for each in (self._beat(), self._fail_at_end())]

    @property
    def pid(self) -> int:
        """The id of the engine process."""
        return self._link.pid

    @classmethod
    async def start(
        cls, config: EngineConfig, on_progress: Listener = lambda phase, done, total: None
    ) -> EngineClient:
        """Start an engine process for this frontend alone, as `EngineProcess.start`."""
        return cls(await EngineProcess.start(config, on_progress))

    def new_handle(self) -> int:
        """A request handle not in use."""
        return next(self._handles)

    def submit(self, request: Request) -> Submission:
        """Send a request, never blocking; raises `EngineDeadError` if the engine is gone."""
        submission = self._new_submission(request.handle, request.n)
        message = self._outgoing()
        message.submit.append(request)
        if len(message.submit) == MAX_HELD:
            self._send()
        return submission

    def score(self, request: ScoringRequest) -> Submission:
        """Send a scoring request, at once: it may hold many prompts, and others of this turn of the
        event loop may be long in the making. Raises as `submit`."""
        submission = self._new_submission(request.handle, 1)
        self._message.score.append(request)
        self._send()
        return submission

    def abort(self, handle: int, choice: int = -1) -> None:
        """End one choice, or all with -1. The submission still sees each choice's end."""
        if handle in self._submissions and not self._link.ended.done():
            self._outgoing().abort.append((handle, choice))

    async def control(self, command: AnyCommand) -> ControlReply:
        """Send a command and wait for its end; raises as `EngineHandle.control`."""
        self._check_link()
        handle = self.new_handle()
        ended: asyncio.Future[ControlReply] = asyncio.get_running_loop().create_future()
        self._commands[handle] = ended
        self._outgoing().control.append(ControlRequest(handle, command))
        try:
            reply = await ended
        finally:
            self._commands.pop(handle, None)
        if reply.error is not None:
            raise ControlError(reply.error, reply.code or "refused")
        return reply

    def failure(self) -> str | None:
        """Why the engine cannot serve (dead, or no heartbeat); None while it can."""
        return self._link.failure()

    @property
    def has_ended(self) -> bool:
        """Whether the engine never serves again."""
        return self._link.ended.done()

    async def close(self) -> None:
        """Give the engine up, which ends one of our own."""
        await self._link.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close(linger=0)

    # -- messages ---------------------------------------------------------------------------

    def _new_submission(self, handle: int, num_choices: int) -> Submission:
        self._check_link()
        submission = self._submissions[handle] = Submission(handle, num_choices)
        return submission

    def _check_link(self) -> None:
        if self._link.ended.done():
            raise EngineDeadError(self._link.ended.result())

    def _outgoing(self) -> FrontendMessage:
        """The message of this turn of the event loop; its first use schedules the sending."""
        if not _has_content(self._message):
            self._loop.call_soon(self._send)
        return self._message

    def _send(self) -> None:
        """Send the message, unless it is empty: a full one was sent before its turn ended."""
        message, self._message = self._message, FrontendMessage()
        if _has_content(message):
            self._send_now(message)

    def _send_now(self, message: FrontendMessage) -> None:
        self._socket.send(encode(message), zmq.NOBLOCK)
        # Sending takes note of what has come, of which the event loop is then not told again.
        if self._has_come:
            self._loop.call_soon(self._receive)

    @property
    def _has_come(self) -> bool:
        return bool(int(self._socket.get(zmq.EVENTS)) & _READABLE)

    def _receive(self) -> None:
        """Take in every output that has come."""
        while not self._socket.closed and self._has_come:
            self._take(decode_output(self._socket.recv(zmq.NOBLOCK)))

    def _take(self, output: StepOutput) -> None:
        if output.stats is not None:
            self.stats = output.stats
        if output.state is not None:
            self.state = output.state
        for reply in output.control:
            self._end_command(reply)
        for handle in deliver_output(output, self._submissions):
            del self._submissions[handle]

    def _end_command(self, reply: ControlReply) -> None:
        ended = self._commands.get(reply.handle)
        if ended is not None and not ended.done():  # whoever waits may have been cancelled
            ended.set_result(reply)

    async def _beat(self) -> None:
        """Tell the engine that somebody reads what it sends; it answers with its state."""
        awake = AwakeClock()
        while True:
            if (held_up_s := awake.tick()) > LATE_S:
                logger.warning("this process was stopped or held up for %.1f s", held_up_s)
            self._send_now(FrontendMessage())
            await asyncio.sleep(BEAT_S)

    async def _fail_at_end(self) -> None:
        reason = await asyncio.shield(self._link.ended)
        for submission in self._submissions.values():
            submission.fail(EngineDeadError(reason))
        self._submissions.clear()
        for ended in self._commands.values():
            if not ended.done():
                ended.set_exception(EngineDeadError(reason))


def _has_content(message: FrontendMessage) -> bool:
    return bool(message.submit or message.score or message.abort or message.control)
