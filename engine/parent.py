"""The parent's side of an engine process: start it, hear its heartbeat, notice its end."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import tempfile
from asyncio.subprocess import PIPE, Process

import msgspec

from engine.awake import AwakeClock
from engine.config import ConfigError, EngineConfig
from engine.contracts.info import EngineInfo
from engine.contracts.status import FOLDER_PREFIX, Beat, Failed, Progress, Ready, StatusLine
from engine.parallel.programs import command_of
from engine.progress import Listener

_status_decoder: msgspec.json.Decoder[StatusLine] = msgspec.json.Decoder(StatusLine)

COMMAND = command_of("engine.process")
"""The command that starts an engine process; the address to listen at follows."""

SILENCE_S = 10.0
"""Seconds without a heartbeat after which the engine counts as hung, of those in which this process
ran: heartbeats wait in the pipe for one that was stopped."""

TICK_S = 0.25
"""Seconds between two looks at the clock."""

CLOSE_S = 5.0
"""Seconds a closing engine may take before it is killed."""


class EngineProcess:
    """An engine process of ours, which lives as long as its standard input. `start` makes one.

    Attributes:
        info: the engine's description of itself.
        pid: the id of the process.
        address: where frontends connect.
        ended: gets the reason when the process has ended.
    """

    def __init__(self, process: Process, info: EngineInfo, folder: str) -> None:
        self.info = info
        self.pid = process.pid
        self.address = _address(folder)
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._process = process
        self._folder = folder
        self._awake = AwakeClock()
        self._beat_at = self._awake.seconds
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._tick())]

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        on_progress: Listener = lambda phase, done, total: None,
        folder: str | None = None,
    ) -> EngineProcess:
        """Start an engine process and wait until it serves.

        Args:
            on_progress: called with how far the start is.
            folder: one that `make_folder` made, for the socket; it goes when the engine does.

        Raises:
            ConfigError: the engine could not start; the message says why in one line.
        """
        folder = make_folder() if folder is None else folder
        process: Process | None = None
        try:
            process = await asyncio.create_subprocess_exec(
                *COMMAND, _address(folder), stdin=PIPE, stdout=PIPE
            )
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(config) + b"\n")
            info = await _handshake(process, on_progress)
        except BaseException:
            if process is not None:
                await _kill(process)
            shutil.rmtree(folder, ignore_errors=True)  # the engine process may be at it too
            raise
        return cls(process, info, folder)

    def failure(self) -> str | None:
        """Why the engine cannot serve (dead, or no heartbeat); None while it can."""
        if self.ended.done():
            return self.ended.result()
        silence = self._awake.seconds - self._beat_at
        return f"the engine has been silent for {silence:.0f} s" if silence > SILENCE_S else None

    @property
    def has_ended(self) -> bool:
        """Whether it never serves again."""
        return self.ended.done()

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
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _watch(self) -> None:
        assert self._process.stdout is not None
        reason = ""
        async for line in self._process.stdout:
            match _status(line):
                case Beat():
                    self._beat_at = self._awake.seconds
                case Failed(message):
                    reason = f": {message}"
        code = await self._process.wait()
        self.ended.set_result(f"the engine process {end_of(code)}{reason}")

    async def _tick(self) -> None:
        while True:
            self._awake.tick()
            await asyncio.sleep(TICK_S)


def make_folder() -> str:
    """Make a folder for an engine's socket; the engine removes it should its parent be killed."""
    return tempfile.mkdtemp(prefix=FOLDER_PREFIX)


async def _kill(process: Process) -> None:
    """Kill a process and wait for its end, which comes soon: also where this is cancelled."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    ending = asyncio.ensure_future(process.wait())
    while not ending.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(ending)


def _address(folder: str) -> str:
    return f"ipc://{folder}/engine"


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
    end = end_of(await process.wait())
    raise ConfigError(
        f"the engine process {end} while starting; the log lines above say why. "
        "Where memory ran out, lower --gpu-memory-utilization, --max-model-len or --max-num-seqs; "
        "elsewhere try --enforce-eager"
    )


def end_of(code: int) -> str:
    """How a process ended, by its exit status as `asyncio` has it."""
    if code == -signal.SIGKILL:
        return "was killed (signal 9), perhaps because memory ran out"
    return f"was ended by signal {-code}" if code < 0 else f"ended (status {code})"


def _status(line: bytes) -> StatusLine:
    return _status_decoder.decode(line)
