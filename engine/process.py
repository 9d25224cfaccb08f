"""The engine in a process of its own: the loop that owns it, and the two lines that tie it down.

Started as `python -m engine.process ADDRESS` with the configuration on standard input. It talks
to any number of frontends over one ROUTER socket at ADDRESS. Its standard output carries status
lines to the parent: `ready`, a `beat` twice a second, and `failed` before it ends of itself. It
ignores SIGTERM and SIGINT (draining is the server's business) and ends when its standard input
does, so that it cannot outlive a killed parent.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from typing import Any

import msgspec
import zmq

from engine.config import ConfigError, EngineConfig, EngineInfo
from engine.planning.outputs import empty_output
from engine.request import StepOutput, decode_message, encode

logger = logging.getLogger(__name__)

BEAT_S = 0.5
STATS_S = 0.5
"""A long prompt or a request of many items may take seconds without anything to report."""
SWITCH_S = 50e-6
"""The stepping thread gets the interpreter back this soon; Python's own 5 ms is a CPU step."""
EXIT_CONFIG, EXIT_HUNG, EXIT_FATAL = 2, 3, 4


class Status(msgspec.Struct, tag_field="status", tag="", frozen=True):
    """A line from the engine process to its parent."""


class Ready(Status, tag="ready", frozen=True):
    """The engine serves."""

    info: EngineInfo


class Failed(Status, tag="failed", frozen=True):
    """The engine ends: it cannot start for a reason the user can mend, or it cannot go on."""

    message: str


class Beat(Status, tag="beat", frozen=True):
    """The process is alive and its loop goes round."""


StatusLine = Ready | Failed | Beat


class _StatusPipe:
    """Writes status lines; libraries that print to standard output reach standard error."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, line: StatusLine) -> None:
        with self._lock:
            os.write(self._fd, msgspec.json.encode(line) + b"\n")


def _follow_parent() -> None:
    """End the process at once when the parent is gone; a step in flight is of no use to anyone."""
    while os.read(0, 4096):
        pass
    os._exit(0)


class EngineLoop:
    """Receives, steps, sends; idle, it waits for a message."""

    def __init__(self, config: EngineConfig, address: str, engine: Any) -> None:
        self._config = config
        self._engine = engine
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.set_hwm(0)
        self._socket.bind(address)
        self._busy_since = math.inf
        self._sent_at: dict[bytes, float] = {}

    @property
    def hung(self) -> bool:
        """Whether the round the loop is in has taken longer than a step may."""
        return time.monotonic() - self._busy_since > self._config.step_timeout_s

    def run(self) -> None:
        """Serve until the process ends."""
        while True:
            if not self._engine.has_work:
                self._socket.poll()
            self._busy_since = time.monotonic()
            self._receive()
            for frontend, output in self._engine.step():
                self._send(frontend, output)
            self._send_stats()
            self._busy_since = math.inf

    def _send(self, frontend: bytes, output: StepOutput) -> None:
        self._sent_at[frontend] = time.monotonic()
        self._socket.send_multipart([frontend, encode(output)])

    def _send_stats(self) -> None:
        """How the engine stands, to frontends it has had nothing to say to for a while."""
        now = time.monotonic()
        for frontend, sent_at in self._sent_at.items():
            if now - sent_at > STATS_S:
                self._send(frontend, empty_output(self._engine.stats()))

    def _receive(self) -> None:
        while True:
            try:
                frontend, raw = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._sent_at.setdefault(frontend, time.monotonic())
            try:
                message = decode_message(raw)
            except msgspec.DecodeError as error:
                logger.error("passed over a message that is not ours: %s", error)
                continue
            for request in message.submit:
                self._engine.submit(frontend, request)
            for scoring in message.score:
                self._engine.score(frontend, scoring)
            for handle, choice in message.abort:
                self._engine.abort(frontend, handle, choice)


def _watch(loop: EngineLoop, status: _StatusPipe, limit_s: float) -> None:
    """Beat while the loop goes round, and end the process when it does not.

    On a thread of its own: the stepping thread may be waiting inside CUDA, which lets go of the
    interpreter but hears nothing.
    """
    while not loop.hung:
        status.send(Beat())
        time.sleep(BEAT_S)
    _exit(_give_up(status, EXIT_HUNG, f"a step took over {limit_s:g} s"))


def _give_up(status: _StatusPipe, code: int, reason: str) -> int:
    logger.error("the engine gives up: %s", reason)
    status.send(Failed(reason))
    return code


def _exit(code: int) -> None:
    """Threads of a hung step would keep a normal exit waiting."""
    sys.stderr.flush()
    os._exit(code)


def main() -> int:
    """Entry point of the engine process; the exit status tells the parent why it ended."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_S)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s engine: %(message)s")
    status = _StatusPipe()
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    threading.Thread(target=_follow_parent, daemon=True).start()
    started = time.monotonic()
    try:
        from engine.startup.build import build_engine  # torch, once the parent can be followed

        logger.info("importing took %.1f s", time.monotonic() - started)
        loop = EngineLoop(config, sys.argv[1], engine := build_engine(config))
    except ConfigError as error:
        status.send(Failed(str(error)))
        return EXIT_CONFIG
    except Exception:
        logger.exception("the engine could not be built")
        return EXIT_FATAL
    status.send(Ready(engine.info))
    limit_s = config.step_timeout_s
    threading.Thread(target=_watch, args=(loop, status, limit_s), daemon=True).start()
    try:
        loop.run()
    except TimeoutError:
        _exit(_give_up(status, EXIT_HUNG, f"a step took over {limit_s:g} s"))
    except Exception as error:  # freeing tensors on a device that is lost would abort the process
        logger.exception("the engine cannot go on")
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        _exit(_give_up(status, EXIT_FATAL, reason))
    return 0


if __name__ == "__main__":
    _exit(main())
