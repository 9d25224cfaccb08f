"""The engine's loop: messages of frontends in, steps, outputs back, over one socket."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Set
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import zmq

from engine.awake import LATE_S, AwakeClock
from engine.config import EngineConfig
from engine.contracts.control import ControlReply
from engine.control.command_queue import CommandQueue
from engine.messages.codec import decode_message, encode
from engine.messages.step_output import StepOutput
from engine.planning.outputs import empty_output

if TYPE_CHECKING:
    from engine.engine import (
        Engine,  # imports more than must be there before the parent is followed
    )

logger = logging.getLogger("engine")

STATS_S = 0.5
"""Seconds without an output after which a frontend is sent statistics: a long prompt or a request
of many items may take longer before there is anything to report."""

FRESH_S = 0.01
"""Seconds for which the statistics that a frontend was sent are fresh. A small model's steps are
far shorter, and statistics with each would take a fifth of what the host does for it."""

SILENCE_S = 30.0
"""Seconds without a message, while the engine itself ran, after which a frontend counts as gone.
Frontends send one twice a second, but one whose process is stopped or whose event loop is held up
does not. One whose socket has ended is gone at once."""

_READABLE = int(zmq.POLLIN)
"""A plain number: to look into a flag of an enum takes as long as to ask the socket."""


class Frontends:
    """The frontends that have sent something and have not fallen silent since."""

    def __init__(self) -> None:
        self._awake = AwakeClock()
        self._heard_at: dict[bytes, float] = {}
        self._sent_at: dict[bytes, float] = {}
        self._stats_at: dict[bytes, float] = {}

    def heard(self, frontend: bytes) -> None:
        """Note a message of a frontend, perhaps its first."""
        self._heard_at[frontend] = self._awake.seconds
        self._sent_at.setdefault(frontend, time.monotonic())

    def has_fresh_stats(self, frontend: bytes) -> bool:
        """Whether it was sent statistics within `FRESH_S`."""
        return time.monotonic() < self._stats_at.get(frontend, 0.0) + FRESH_S

    def sent(self, frontend: bytes, *, with_stats: bool) -> None:
        """Note an output for a frontend."""
        if frontend in self._sent_at:
            self._sent_at[frontend] = now = time.monotonic()
            if with_stats:
                self._stats_at[frontend] = now

    @property
    def known(self) -> Set[bytes]:
        """All of them."""
        return self._heard_at.keys()

    def without_news(self) -> Set[bytes]:
        """Those that got nothing for `STATS_S`, or whose last output left old statistics behind."""
        now, stats_at = time.monotonic(), self._stats_at
        return {
            frontend
            for frontend, sent_at in self._sent_at.items()
            if now > sent_at + STATS_S
            or stats_at.get(frontend, sent_at) < min(sent_at, now - FRESH_S)
        }

    def take_silent(self) -> list[bytes]:
        """Forget those that sent nothing for `SILENCE_S`, and return them."""
        self._awake.tick()
        before = self._awake.seconds - SILENCE_S
        silent = [frontend for frontend, heard_at in self._heard_at.items() if heard_at < before]
        for frontend in silent:
            self.forget(frontend)
        return silent

    def forget(self, frontend: bytes) -> None:
        """Forget one that is gone; twice does no harm."""
        for times in (self._heard_at, self._sent_at, self._stats_at):
            times.pop(frontend, None)


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
        self._commands = CommandQueue(engine.held, lambda *reply: self._replies.append(reply))
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
            self._await_step()
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
        if self._bell.fd in dict(self._poller.poll()):
            self._bell.silence()

    def _await_step(self) -> None:
        """Wait for a step after which nothing is launched, or for what could be.

        Without sleep, as CUDA waits: a nap would last longer than what it is for.
        """
        while self._engine.only_waits and not self._has_message:
            pass

    @property
    def _has_message(self) -> bool:
        return bool(int(self._socket.get(zmq.EVENTS)) & _READABLE)

    def _send(self, frontend: bytes, output: StepOutput) -> None:
        """Send an output; a request's end comes with the statistics that count it."""
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
            if frontend in self._frontends.known:  # else an output of this step has met its end
                self._drop(frontend, "has ended")
            return
        self._socket.send(encode(output))

    def _send_stats(self, reached: Set[bytes] = frozenset()) -> None:
        """Send statistics to frontends that got none, or nothing at all, for a while.

        Args:
            reached: who got an output just now. Where that was the last, all others get statistics.
        """
        ends = bool(reached) and not self._engine.has_work
        for frontend in (
            set(self._frontends.known) - reached if ends else self._frontends.without_news()
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
        while self._has_message:
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
