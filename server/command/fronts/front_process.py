"""The process of one of several fronts, which a supervisor starts.

It gets what to do over standard input and ends with it, so that it cannot outlive a killed
supervisor. It leaves SIGTERM and SIGINT to the supervisor. Its standard output carries lines to the
supervisor; what libraries print goes to standard error.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading

import msgspec
from prometheus_client import disable_created_metrics

from engine.client import EngineClient
from engine.config import ConfigError
from engine.contracts.info import EngineInfo
from engine.contracts.status import StatusPipe
from engine.logs import configure_logging
from engine.structured.without_torch import prepare_for_tokenizers
from engine.submission import EngineDeadError
from server.command.fronts.front import Front, new_loop
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
)
from server.fronts import FrontTable
from server.http.admission import ShutdownError

EXIT_CONFIG = 2

_decoder: msgspec.json.Decoder[ToFront] = msgspec.json.Decoder(ToFront)


class ReportedEngine:
    """An `EngineLink` to the supervisor's engine, whose state it gets over standard input."""

    def __init__(self, attach: Attach) -> None:
        self.info: EngineInfo = attach.info
        self.pid = attach.pid
        self.address = attach.address
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._failure: str | None = None

    def send(self, failure: EngineFailure) -> None:
        """Take in what the supervisor says."""
        self._failure = failure.reason
        if failure.ended and failure.reason is not None and not self.ended.done():
            self.ended.set_result(failure.reason)

    def failure(self) -> str | None:
        """Why the engine cannot serve; None while it can."""
        return self._failure

    async def close(self) -> None:
        """Leave the engine to its owner."""


async def _work(front: Front, status: StatusPipe, lines: asyncio.Queue[ToFront]) -> None:
    """Do what the supervisor says, from `Attach` to `End`."""
    attach = await lines.get()
    if not isinstance(attach, Attach):
        return
    link = ReportedEngine(attach)
    engine = EngineClient(link)
    await front.attach(engine)
    status.send(Answering())
    draining = None
    while not isinstance(line := await lines.get(), End):
        match line:
            case EngineFailure():
                link.send(line)
            case Drain(timeout_s):
                draining = asyncio.create_task(_drain(front, timeout_s, status))
            case FailAll(reason):
                front.fail_all(ShutdownError() if reason is None else EngineDeadError(reason))
    if draining is not None:
        await draining
    await front.close()
    await engine.close()


async def _drain(front: Front, timeout_s: float, status: StatusPipe) -> None:
    status.send(Drained(await front.drain(timeout_s)))


def _follow_parent(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[ToFront]) -> None:
    """Pass lines on, and end the process as soon as they end: nobody waits for open requests."""
    for line in sys.stdin.buffer:
        loop.call_soon_threadsafe(lines.put_nowait, _decoder.decode(line))
    os._exit(0)


async def _run(start: FrontStart, status: StatusPipe) -> int:
    lines: asyncio.Queue[ToFront] = asyncio.Queue()
    following = (asyncio.get_running_loop(), lines)
    threading.Thread(target=_follow_parent, args=following, daemon=True).start()
    fronts = FrontTable(start.num_fronts, start.index, start.table_fd)
    front = Front(start.front, socket.socket(fileno=start.listener_fd), fronts)
    try:
        await front.load()
    except ConfigError as error:
        status.send(StartFailed(str(error)))
        return EXIT_CONFIG
    status.send(Loaded())
    await _work(front, status, lines)
    return 0


def main() -> int:
    """Run the process; returns its exit status."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = StatusPipe()
    line = sys.stdin.buffer.readline()
    if not line:  # the supervisor is gone already
        return 0
    start = msgspec.json.decode(line, type=FrontStart)
    configure_logging(start.log_level, start.log_format, "tailrace")
    if start.http_log_level is not None:
        logging.getLogger("tailrace.http").setLevel(start.http_log_level)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    prepare_for_tokenizers(trust_remote_code=start.front.trust_remote_code)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_run(start, status))


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # as `server.cli.run` ends: taking the interpreter down would report leaks
