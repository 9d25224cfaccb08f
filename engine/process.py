"""The engine in a process of its own: the loop that owns it, and the two lines that tie it down.

Started as `python -m engine.process ADDRESS` with the configuration on standard input. It talks
to any number of frontends over one ROUTER socket at ADDRESS. Its standard output carries status
lines to the parent: `ready`, `failed`, then a `beat` twice a second. It ignores SIGTERM and
SIGINT (draining is the server's business) and ends when its standard input does, so that it
cannot outlive a killed parent.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from typing import Any

import msgspec
import zmq

from engine.config import ConfigError, EngineConfig, EngineInfo
from engine.request import decode_message, encode

logger = logging.getLogger(__name__)

BEAT_S = 0.5
SWITCH_S = 50e-6
"""The stepping thread gets the interpreter back this soon; Python's own 5 ms is a CPU step."""
IDLE_POLL_MS = 500
EXIT_CONFIG, EXIT_HUNG, EXIT_FATAL = 2, 3, 4


class Status(msgspec.Struct, tag_field="status", tag="", frozen=True):
    """A line from the engine process to its parent."""


class Ready(Status, tag="ready", frozen=True):
    """The engine serves."""

    info: EngineInfo


class Failed(Status, tag="failed", frozen=True):
    """The engine cannot start, for a reason the user can mend."""

    message: str


class Beat(Status, tag="beat", frozen=True):
    """The process is alive and its loop moved less than a step's time limit ago."""


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
        self._moved_at = time.monotonic()

    @property
    def moving(self) -> bool:
        """Whether the loop went round within the time a step may take."""
        return time.monotonic() - self._moved_at < self._config.step_timeout_s

    def run(self) -> None:
        """Serve until the process ends."""
        while True:
            self._receive(wait=not self._engine.has_work)
            self._moved_at = time.monotonic()
            for frontend, output in self._engine.step():
                self._socket.send_multipart([frontend, encode(output)])

    def _receive(self, *, wait: bool) -> None:
        if wait and not self._socket.poll(IDLE_POLL_MS):
            return
        while True:
            try:
                frontend, raw = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = decode_message(raw)
            except msgspec.DecodeError as error:
                logger.error("passed over a message that is not ours: %s", error)
                continue
            for request in message.submit:
                self._engine.submit(frontend, request)
            for handle, choice in message.abort:
                self._engine.abort(frontend, handle, choice)


def _beat(loop: EngineLoop, status: _StatusPipe) -> None:
    while True:
        if loop.moving:
            status.send(Beat())
        time.sleep(BEAT_S)


def main() -> int:
    """Entry point of the engine process; the exit status tells the parent why it ended."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_S)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s engine: %(message)s")
    status = _StatusPipe()
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        from engine.build import build_engine  # torch, once the parent can be followed

        loop = EngineLoop(config, sys.argv[1], engine := build_engine(config))
    except ConfigError as error:
        status.send(Failed(str(error)))
        return EXIT_CONFIG
    except Exception:
        logger.exception("the engine could not be built")
        return EXIT_FATAL
    status.send(Ready(engine.info))
    threading.Thread(target=_beat, args=(loop, status), daemon=True).start()
    try:
        loop.run()
    except TimeoutError:
        logger.error("a step took over %g s; the engine gives up", config.step_timeout_s)
        return EXIT_HUNG
    except Exception:
        logger.exception("the engine cannot go on")
        return EXIT_FATAL
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # threads of a hung step would keep a normal exit waiting
