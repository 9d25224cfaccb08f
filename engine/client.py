"""The frontend's side of the engine: start it, submit, abort, know when it is gone.

`EngineHandle` is what the server is written against; `EngineClient` speaks to the engine process,
tests may stand in a fake.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import tempfile
import time
import uuid
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Protocol

import msgspec
import zmq
import zmq.asyncio

from engine.config import ConfigError, EngineConfig, EngineInfo
from engine.process import Beat, Failed, Ready, StatusLine
from engine.request import (
    FrontendMessage,
    Request,
    ScoringRequest,
    decode_output,
    encode,
)
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

_status_decoder: msgspec.json.Decoder[StatusLine] = msgspec.json.Decoder(StatusLine)

COMMAND = (sys.executable, "-m", "engine.process")
"""Takes the address to listen at; see `engine.process`."""

SILENCE_S = 10.0
"""Without a heartbeat for so long, the engine counts as hung."""

CLOSE_S = 5.0
"""How long a closing engine may take before it is killed."""

MAX_HELD = 8
"""Requests of one turn of the event loop that go in one message; the engine begins on these while
a burst of hundreds is still being read."""


class EngineHandle(Protocol):
    """An engine, as the server sees it.

    Attributes:
        info: what the engine said of itself when it was ready.
        stats: of the latest step output; None before the first.
    """

    info: EngineInfo
    stats: EngineStats | None

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

    def failure(self) -> str | None:
        """Why the engine cannot serve (dead, or no heartbeat); None while it can."""
        ...

    async def close(self) -> None:
        """Stop the engine and wait for it to be gone."""
        ...


class EngineClient:
    """An engine process of our own and the socket to it. Use `start`."""

    def __init__(self, process: Process, info: EngineInfo, folder: str, address: str) -> None:
        self.info = info
        self.stats: EngineStats | None = None
        self._process = process
        self._folder = folder
        self._tickets: dict[int, Submission] = {}
        self._handles = itertools.count(1)
        self._message = FrontendMessage()
        self._beat_at = time.monotonic()
        self._died: str | None = None
        self._closing = False
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.IDENTITY, uuid.uuid4().bytes)
        self._socket.connect(address)
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]

    @classmethod
    async def start(cls, config: EngineConfig) -> EngineClient:
        """Start an engine process and wait until it serves.

        Raises:
            ConfigError: the engine refused to start; the message says why in one line.
        """
        folder = tempfile.mkdtemp(prefix="tailrace-")
        address = f"ipc://{folder}/engine"
        process = await asyncio.create_subprocess_exec(*COMMAND, address, stdin=PIPE, stdout=PIPE)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(config) + b"\n")
        try:
            info = await _handshake(process)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            _remove(folder)
            raise
        return cls(process, info, folder, address)

    @property
    def pid(self) -> int:
        """Of the engine process."""
        return self._process.pid

    def new_handle(self) -> int:
        """A request handle not in use."""
        return next(self._handles)

    def submit(self, request: Request) -> Submission:
        """Send a request, never blocking; raises `EngineDeadError` if the engine is gone."""
        submission = self._new_ticket(request.handle, request.n)
        message = self._outgoing()
        message.submit.append(request)
        if len(message.submit) == MAX_HELD:
            self._send()
        return submission

    def score(self, request: ScoringRequest) -> Submission:
        """Send a scoring request; as `submit`."""
        submission = self._new_ticket(request.handle, 1)
        self._outgoing().score.append(request)
        return submission

    def abort(self, handle: int, choice: int = -1) -> None:
        """End one choice, or all with -1. The submission still sees each choice's end."""
        if handle in self._tickets and self._died is None:
            self._outgoing().abort.append((handle, choice))

    def failure(self) -> str | None:
        """Why the engine cannot serve (dead, or no heartbeat); None while it can."""
        silence = time.monotonic() - self._beat_at
        if self._died is None and silence > SILENCE_S:
            return f"the engine has been silent for {silence:.0f} s"
        return self._died

    async def close(self) -> None:
        """Stop the engine and wait for it to be gone."""
        self._closing = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), CLOSE_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close(linger=0)
        _remove(self._folder)

    # -- wires ------------------------------------------------------------------------------

    def _new_ticket(self, handle: int, num_choices: int) -> Submission:
        if self._died is not None:
            raise EngineDeadError(self._died)
        submission = self._tickets[handle] = Submission(handle, num_choices)
        return submission

    def _outgoing(self) -> FrontendMessage:
        """The message of this turn of the event loop, to be added to; its first use sends it."""
        if not _has_content(self._message):
            asyncio.get_running_loop().call_soon(self._send)
        return self._message

    def _send(self) -> None:
        """Send what there is; it may have gone already."""
        message, self._message = self._message, FrontendMessage()
        if _has_content(message):
            self._socket.send(encode(message))

    async def _receive(self) -> None:
        while True:
            output = decode_output(await self._socket.recv())
            self.stats = output.stats
            for handle in deliver_output(output, self._tickets):
                del self._tickets[handle]

    async def _watch(self) -> None:
        assert self._process.stdout is not None
        reason = ""
        async for line in self._process.stdout:
            match _status(line):
                case Beat():
                    self._beat_at = time.monotonic()
                case Failed(message):
                    reason = f": {message}"
        code = await self._process.wait()
        self._died = f"the engine process ended (status {code}){reason}"
        for submission in self._tickets.values():
            submission.fail(EngineDeadError(self._died))
        self._tickets.clear()


def _has_content(message: FrontendMessage) -> bool:
    return bool(message.submit or message.score or message.abort)


async def _handshake(process: Process) -> EngineInfo:
    assert process.stdout is not None
    line = await process.stdout.readline()
    status = _status(line) if line else None
    if isinstance(status, Failed):
        raise ConfigError(status.message)
    if isinstance(status, Ready):
        return status.info
    code = await process.wait()
    raise ConfigError(f"the engine process ended while starting (status {code})")


def _status(line: bytes) -> StatusLine:
    return _status_decoder.decode(line)


def _remove(folder: str) -> None:
    for path in Path(folder).iterdir():
        path.unlink()
    Path(folder).rmdir()
