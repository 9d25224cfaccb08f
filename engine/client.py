"""The frontend's side of the engine: start it, submit to it, abort, notice when it is gone.

The server is written against `EngineHandle`. `EngineClient` is the handle of an engine process;
tests use a fake.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
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

from engine.codec import decode_output, encode
from engine.config import ConfigError, EngineConfig, EngineInfo
from engine.process import FOLDER_PREFIX, Beat, Failed, Progress, Ready, StatusLine
from engine.progress import Listener
from engine.request import FrontendMessage, Request, ScoringRequest
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

_PROGRAM = (
    f"import sys; sys.path.append({str(Path(__file__).parents[1])!r}); "
    "import runpy; runpy.run_module('engine.process', run_name='__main__', alter_sys=True)"
)
COMMAND = (sys.executable, "-P", "-c", _PROGRAM)
"""The command that starts an engine process; the address to listen at follows. It is
`python -m engine.process`, but imports no file of the directory the user happens to stand in."""

SILENCE_S = 10.0
"""Seconds without a heartbeat after which the engine counts as hung."""

CLOSE_S = 5.0
"""Seconds a closing engine may take before it is killed."""

MAX_HELD = 8
"""Requests of one turn of the event loop that go in one message at most. The engine begins with
these while a burst of hundreds is still being read."""


class EngineHandle(Protocol):
    """An engine, as the server sees it.

    Attributes:
        info: the engine's description of itself.
        stats: statistics of the latest step output; None before the first.
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
    """An engine process and the socket to it. `start` makes one."""

    def __init__(self, process: Process, info: EngineInfo, folder: str, address: str) -> None:
        self.info = info
        self.stats: EngineStats | None = None
        self._process = process
        self._folder = folder
        self._submissions: dict[int, Submission] = {}
        self._handles = itertools.count(1)
        self._message = FrontendMessage()
        self._beat_at = time.monotonic()
        self._died: str | None = None
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.IDENTITY, uuid.uuid4().bytes)
        self._socket.connect(address)
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]

    @classmethod
    async def start(
        cls, config: EngineConfig, on_progress: Listener = lambda phase, done, total: None
    ) -> EngineClient:
        """Start an engine process and wait until it serves.

        Args:
            on_progress: is told how far the start is.

        Raises:
            ConfigError: the engine could not start; the message says why in one line.
        """
        folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX)
        address = f"ipc://{folder}/engine"
        process = await asyncio.create_subprocess_exec(*COMMAND, address, stdin=PIPE, stdout=PIPE)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(config) + b"\n")
        try:
            info = await _handshake(process, on_progress)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            shutil.rmtree(folder, ignore_errors=True)  # the engine process may be at it too
            raise
        return cls(process, info, folder, address)

    @property
    def pid(self) -> int:
        """The id of the engine process."""
        return self._process.pid

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
        """Send a scoring request; as `submit`."""
        submission = self._new_submission(request.handle, 1)
        self._outgoing().score.append(request)
        return submission

    def abort(self, handle: int, choice: int = -1) -> None:
        """End one choice, or all with -1. The submission still sees each choice's end."""
        if handle in self._submissions and self._died is None:
            self._outgoing().abort.append((handle, choice))

    def failure(self) -> str | None:
        """Why the engine cannot serve (dead, or no heartbeat); None while it can."""
        silence = time.monotonic() - self._beat_at
        if self._died is None and silence > SILENCE_S:
            return f"the engine has been silent for {silence:.0f} s"
        return self._died

    async def close(self) -> None:
        """Stop the engine and wait for it to be gone."""
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
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- messages ---------------------------------------------------------------------------

    def _new_submission(self, handle: int, num_choices: int) -> Submission:
        if self._died is not None:
            raise EngineDeadError(self._died)
        submission = self._submissions[handle] = Submission(handle, num_choices)
        return submission

    def _outgoing(self) -> FrontendMessage:
        """The message of this turn of the event loop; its first use schedules the sending."""
        if not _has_content(self._message):
            asyncio.get_running_loop().call_soon(self._send)
        return self._message

    def _send(self) -> None:
        """Send the message, unless it is empty: a full one was sent before its turn ended."""
        message, self._message = self._message, FrontendMessage()
        if _has_content(message):
            self._socket.send(encode(message))

    async def _receive(self) -> None:
        while True:
            output = decode_output(await self._socket.recv())
            self.stats = output.stats
            for handle in deliver_output(output, self._submissions):
                del self._submissions[handle]

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
        for submission in self._submissions.values():
            submission.fail(EngineDeadError(self._died))
        self._submissions.clear()


def _has_content(message: FrontendMessage) -> bool:
    return bool(message.submit or message.score or message.abort)


async def _handshake(process: Process, on_progress: Listener) -> EngineInfo:
    assert process.stdout is not None
    async for line in process.stdout:
        match _status(line):
            case Progress(phase, done, total):
                on_progress(phase, done, total)
            case Failed(message):
                raise ConfigError(message)
            case Ready(info):
                return info
    code = await process.wait()
    raise ConfigError(
        f"the engine process ended while starting (status {code}); the log lines above say why. "
        "Where memory ran out, lower --gpu-memory-utilization, --max-model-len or --max-num-seqs; "
        "elsewhere try --enforce-eager"
    )


def _status(line: bytes) -> StatusLine:
    return _status_decoder.decode(line)
