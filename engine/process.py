"""The engine process: its loop, its socket to frontends and its status lines to the parent.

Started as `python -m engine.process ADDRESS` with the configuration on standard input. It talks
to any number of frontends over one ROUTER socket at ADDRESS. Its standard output carries status
lines to the parent: `progress` while it starts, `ready`, a `beat` twice a second, and `failed`
before it ends by itself. It ignores SIGTERM and SIGINT, because the server drains requests first,
and ends when its standard input does, so that it cannot outlive a killed parent. A frontend that
ends or falls silent has its requests aborted, so that nothing runs or is queued for nobody.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import zmq

from engine.awake import LATE_S, AwakeClock
from engine.codec import decode_message, encode
from engine.config import ConfigError, EngineConfig, EngineInfo
from engine.contracts.control import ControlReply
from engine.errors import kind_and_line
from engine.frontends import SILENCE_S, Frontends
from engine.logs import adopt_library_lines, configure_logging
from engine.parallel.processes import end_ranks
from engine.planning.commands import CommandQueue
from engine.planning.outputs import empty_output
from engine.progress import on_progress, phase
from engine.request import StepOutput
from engine.startup.early import begin_early
from sampling.device.compile_workers import end_workers

if TYPE_CHECKING:
    from engine.engine import Engine

logger = logging.getLogger("engine")

BEAT_S = 0.5
"""Seconds between heartbeats."""

SWITCH_S = 50e-6
"""Seconds after which the stepping thread gets the interpreter back. Python's own 5 ms are as long
as a step on a CPU."""

START_SWITCH_S = 1e-3
"""The same during the start, when a dozen threads compile kernels: at 50 us they do little but take
the interpreter from one another, at 5 ms whoever loads the model waits for them at every turn."""

FOLDER_PREFIX = "tailrace-"
"""How the names of folders begin that a parent makes for the socket and what its fronts share, and
for nothing else."""

_READABLE = int(zmq.POLLIN)
"""A plain number: to look into a flag of an enum takes as long as to ask the socket."""

EXIT_CONFIG, EXIT_HUNG, EXIT_FATAL = 2, 3, 4
"""Exit status after a configuration that cannot be served, a hung step, and any other error."""


class Status(msgspec.Struct, tag_field="status", tag="", frozen=True):
    """A line from the engine process to its parent."""


class Ready(Status, tag="ready", frozen=True):
    """The engine serves."""

    info: EngineInfo


class Failed(Status, tag="failed", frozen=True):
    """The engine ends: its configuration cannot be served, or it cannot go on."""

    message: str


class Progress(Status, tag="progress", frozen=True):
    """How far a phase of the start is; see `engine.progress.Listener`."""

    phase: str
    done: int
    total: int


class Beat(Status, tag="beat", frozen=True):
    """The process is alive and no step takes too long."""


StatusLine = Ready | Failed | Progress | Beat


class StatusPipe:
    """Writes lines to standard output; what libraries print goes to standard error."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, line: msgspec.Struct) -> None:
        """Write a line to the parent."""
        with self._lock:
            os.write(self._fd, msgspec.json.encode(line) + b"\n")


def _follow_parent(address: str) -> None:
    """End the process as soon as standard input ends: nobody waits for the step in flight."""
    while os.read(0, 4096):
        pass
    _remove_socket(address)
    _exit(0)


def _remove_socket(address: str) -> None:
    """Leave nothing behind: a parent that was killed cannot remove the folder it made."""
    path = Path(address.removeprefix("ipc://"))
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    if path.parent.name.startswith(FOLDER_PREFIX):
        shutil.rmtree(path.parent, ignore_errors=True)


class _Bell:
    """Ends a wait of the stepping thread from another thread, by a byte in a pipe."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        for fd in (self.fd, self._write_fd):
            os.set_blocking(fd, False)

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe has been rung enough
            os.write(self._write_fd, b"\0")

    def silence(self) -> None:
        """Let the next wait last until the bell is rung again."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 1 << 16)


class EngineLoop:
    """Receives messages, runs steps and sends outputs.

    When idle it waits for a message, or for a grammar that is being compiled on another thread.
    """

    def __init__(self, config: EngineConfig, address: str, engine: Engine) -> None:
        self._config = config
        self._engine = engine
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # what is sent to nobody is an error
        self._socket.bind(address)
        self._bell = _Bell()
        engine.on_compiled(self._bell.ring)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._bell.fd, zmq.POLLIN)
        self._awake = AwakeClock()
        self._busy_since = math.inf
        self._frontends = Frontends()
        self._replies: list[tuple[bytes, ControlReply]] = []
        self._commands = CommandQueue(engine, lambda *reply: self._replies.append(reply))
        self._sent_state = self._commands.state

    def look(self) -> bool:
        """Whether the current round of the loop has taken longer than a step may.

        One thread asks, several times a second: while it is stopped, so is the step.
        """
        if (held_up_s := self._awake.tick()) > LATE_S:
            logger.warning("the engine process was stopped or held up for %.1f s", held_up_s)
        return self._awake.seconds - self._busy_since > self._config.step_timeout_s

    def run(self) -> None:
        """Serve until the process ends."""
        while True:
            if not (self._engine.has_work or self._commands.is_due or self._replies):
                self._wait()
            self._busy_since = self._awake.seconds
            self._receive()
            self._abort_silent()
            self._follow_commands()
            outputs = self._engine.step()
            for frontend, output in outputs:
                self._send(frontend, output)
            self._send_stats({frontend for frontend, _ in outputs})
            self._busy_since = math.inf

    def _follow_commands(self) -> None:
        """Run what commands are due; all frontends hear of a new state before any reply."""
        self._commands.run_due()
        if self._commands.state != self._sent_state:
            self._sent_state = self._commands.state
            for frontend in set(self._frontends.known):
                self._send(frontend, empty_output(self._engine.stats()))
        replies, self._replies = self._replies, []
        for frontend, reply in replies:
            output = empty_output(self._engine.stats())
            self._send(frontend, msgspec.structs.replace(output, control=[reply]))

    def _wait(self) -> None:
        self._poller.poll()
        self._bell.silence()

    def _send(self, frontend: bytes, output: StepOutput) -> None:
        """Send an output; a request's end is told with the statistics that count it."""
        ends = np.count_nonzero(output.finish) or output.item_scores
        if output.stats is None and (ends or not self._frontends.has_fresh_stats(frontend)):
            output = msgspec.structs.replace(output, stats=self._engine.stats())
        if output.stats is not None:
            output = msgspec.structs.replace(output, state=self._commands.state)
        self._frontends.sent(frontend, with_stats=output.stats is not None)
        try:
            self._socket.send(frontend, zmq.SNDMORE)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._drop(frontend, "has ended")
            return
        self._socket.send(encode(output))

    def _send_stats(self, told: Set[bytes] = frozenset()) -> None:
        """Send statistics to frontends that got none, or nothing at all, for a while.

        Args:
            told: who got an output just now. Where that was the last, all others hear of it.
        """
        ends = bool(told) and not self._engine.has_work
        for frontend in (
            set(self._frontends.known) - told if ends else self._frontends.without_news()
        ):
            self._send(frontend, empty_output(self._engine.stats()))

    def _abort_silent(self) -> None:
        """Abort what frontends asked for that are gone or stopped."""
        for frontend in self._frontends.take_silent():
            self._drop(frontend, f"was silent for {SILENCE_S:g} s")

    def _drop(self, frontend: bytes, why: str) -> None:
        """Abort what a frontend asked for."""
        logger.warning("a frontend %s: its requests are aborted", why)
        self._frontends.forget(frontend)
        self._engine.abort_all(frontend)

    def _receive(self) -> None:
        while int(self._socket.get(zmq.EVENTS)) & _READABLE:
            frontend, raw = self._socket.recv_multipart()
            self._frontends.heard(frontend)
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
            for command in message.control:
                self._commands.submit(frontend, command)


def _watch(loop: EngineLoop, status: StatusPipe, limit_s: float) -> None:
    """Send heartbeats until a step takes too long, then end the process.

    Runs on a thread of its own: the stepping thread may wait inside CUDA, which releases the
    interpreter but cannot be interrupted.
    """
    while not loop.look():
        status.send(Beat())
        time.sleep(BEAT_S)
    _exit(_give_up(status, EXIT_HUNG, f"a step took over {limit_s:g} s"))


def _give_up(status: StatusPipe, code: int, reason: str) -> int:
    logger.error("the engine gives up: %s", reason)
    _fail(status, reason)
    return code


def _fail(status: StatusPipe, reason: str) -> None:
    """Tell the parent, which may kill this process at once, why it ends."""
    end_ranks()
    status.send(Failed(reason))


def _exit(code: int) -> None:
    """End at once: a normal exit would wait for the threads of a hung step."""
    end_ranks()
    sys.stderr.flush()
    os._exit(code)


def main() -> int:
    """Run the engine process; returns the exit status, which tells the parent why it ended."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(START_SWITCH_S)
    status = StatusPipe()
    address = sys.argv[1]
    line = sys.stdin.buffer.readline()
    if not line:  # the parent is gone already
        _remove_socket(address)
        return 0
    config = msgspec.json.decode(line, type=EngineConfig)
    configure_logging(config.log_level, config.log_format, "engine", "sampling")
    threading.Thread(target=_follow_parent, args=(address,), daemon=True).start()
    on_progress(lambda phase, done, total: status.send(Progress(phase, done, total)))
    tokenizer = begin_early(config)
    try:
        with phase("importing"):
            from engine.startup.device import begin_context  # torch: the parent is followed now
            from engine.startup.imports import import_config_class

            begin_context(config)
            import_config_class(config.model.model)
            from engine.startup.build import build_engine

        adopt_library_lines()

        def on_rank_lost(reason: str) -> None:
            _exit(_give_up(status, EXIT_FATAL, reason))

        engine = build_engine(config, on_rank_lost, tokenizer)
        loop = EngineLoop(config, address, engine)
        end_workers()
    except ConfigError as error:
        _fail(status, str(error))
        return EXIT_CONFIG
    except Exception:
        logger.exception("the engine could not be built")
        return EXIT_FATAL
    sys.setswitchinterval(SWITCH_S)
    status.send(Ready(engine.info))
    limit_s = config.step_timeout_s
    threading.Thread(target=_watch, args=(loop, status, limit_s), daemon=True).start()
    try:
        loop.run()
    except Exception as error:  # freeing tensors on a device that is lost would abort the process
        logger.exception("the engine cannot go on")
        _exit(_give_up(status, EXIT_FATAL, kind_and_line(error)))
    return 0


if __name__ == "__main__":
    _exit(main())
