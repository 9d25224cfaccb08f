"""The process of a rank other than 0: it builds its part of the model and runs what rank 0 sends.

Started by `engine.parallel.processes`, which says what its standard input and output carry. It
ignores SIGTERM and SIGINT, as the engine process does, and ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from engine.contracts.weights import WeightUpdateError
from engine.errors import ConfigError, ControlError, kind_and_line
from engine.logs import adopt_library_lines, configure_logging
from engine.parallel.messages import (
    DrawStep,
    DropAdapter,
    FollowWeights,
    Forget,
    GiveBack,
    Launch,
    Order,
    PlanReader,
    ReadAdapter,
    Score,
    Setup,
    TakeAgain,
    decode,
)
from engine.parallel.processes import RankStatus, read_message
from engine.parallel.readings import RankReading
from engine.plan import StepMasks

if TYPE_CHECKING:
    from engine.adapters.store import AdapterStore
    from engine.parallel.collectives import GlooExchange
    from engine.runner.launched import LaunchedScoring, LaunchedStep
    from engine.runner.model_runner import ModelRunner

logger = logging.getLogger("engine")

BEAT_S = 0.5
"""Seconds between heartbeats."""
EXIT_FAILED = 4


class Follower:
    """Runs the steps that rank 0 sends: each is launched while the one before may still run.

    Args:
        report: tells rank 0 of a reading of an adapter that has ended; called on other threads.
    """

    def __init__(self, runner: ModelRunner, report: Callable[[RankReading], None]) -> None:
        self._runner, self._report = runner, report
        self._plans = PlanReader()
        self._awaiting: LaunchedStep | None = None
        self._running: LaunchedStep | LaunchedScoring | None = None

    def follow(self, message: Order) -> None:
        """Launch the step of a message, or the part of one that it has.

        Raises:
            Exception: what launching it, or a step before, raised.
        """
        match message:
            case Launch():
                plan = self._plans.plan(message)
                step = self._runner.launch(plan)
                if plan.awaits_masks:
                    self._awaiting = step
                else:
                    self._run(step)
            case DrawStep():
                assert self._awaiting is not None, "a draw follows the launch of its step"
                self._settle()  # the last step's masks are read from the same buffer
                count = len(message.masks)
                self._runner.mask_buffer[:count] = message.masks
                self._awaiting.draw(StepMasks(count, message.slots))
                self._run(self._awaiting)
            case Score():
                self._run(self._runner.launch_scoring(message.plan))
            case Forget():
                self._settle()
                self._runner.forget(message.rows)
            case GiveBack():
                self._settle()
                with contextlib.suppress(ControlError):  # rank 0 answers
                    self._runner.give_back(message.parts, keeps_weights=message.keeps_weights)
            case TakeAgain():
                with contextlib.suppress(ControlError):
                    self._runner.take_again(message.parts)
            case FollowWeights():
                self._settle()
                with contextlib.suppress(WeightUpdateError):
                    self._runner.weights(message.command)
            case ReadAdapter():
                self._read(message)
            case DropAdapter():
                self._store.drop(message.number)

    def _read(self, message: ReadAdapter) -> None:
        number, source = message.number, message.source
        reading = self._store.read(number, source)
        reading.add_done_callback(lambda it: self._report(RankReading.of(number, source, it)))

    @property
    def _store(self) -> AdapterStore:
        adapters = self._runner.adapters
        assert adapters is not None, "rank 0 serves adapters"
        return adapters.store

    def _run(self, step: LaunchedStep | LaunchedScoring) -> None:
        """Let a step run, and wait for the one before."""
        step.check()
        self._settle()
        self._running = step

    def _settle(self) -> None:
        if self._running is not None:
            self._running.wait()
            self._running = None


class _Pipe:
    """Standard output as lines of status; what libraries print goes to standard error."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, status: RankStatus) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError):  # rank 0 is gone; `_read` knows
            os.write(self._fd, msgspec.json.encode(status) + b"\n")

    def beat(self, life: _Life) -> None:
        """Tell for ever how far this rank is."""
        while True:
            self.send(life.status())
            time.sleep(BEAT_S)

    def report(self, life: _Life, reading: RankReading) -> None:
        """Tell of a reading that has ended."""
        self.send(structs.replace(life.status(), reading=reading))


class _Life:
    """How far this rank is.

    Attributes:
        exchange: with the others, once they have met.
        serves: whether it has started.
    """

    def __init__(self) -> None:
        self.exchange: GlooExchange | None = None
        self.serves = False

    def status(self) -> RankStatus:
        """What is reported of it."""
        if self.exchange is None:
            return RankStatus()
        return RankStatus(self.exchange.num_begun, self.serves)


def _read(messages: queue.SimpleQueue[bytes]) -> None:
    """Pass messages on; end the process at once when there are no more, whatever it does."""
    while (raw := read_message(sys.stdin.buffer)) is not None:
        messages.put(raw)
    os._exit(0)


def main() -> int:
    """Run the process; returns the exit status."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe, life = _Pipe(), _Life()
    threading.Thread(target=pipe.beat, args=(life,), daemon=True).start()
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(messages,), daemon=True).start()
    setup = decode(messages.get())
    assert isinstance(setup, Setup), "the first message is the setup"
    configure_logging(setup.config.log_level, setup.config.log_format, "engine", "sampling")
    try:
        _follow(setup, messages, life, partial(pipe.report, life))
    except Exception as error:
        if not isinstance(error, ConfigError):
            logger.exception("rank %d cannot go on", setup.rank)
        pipe.send(RankStatus(error=kind_and_line(error)))
    return EXIT_FAILED


def _follow(
    setup: Setup,
    messages: queue.SimpleQueue[bytes],
    life: _Life,
    report: Callable[[RankReading], None],
) -> None:
    """Build the rank and run what rank 0 sends, for ever."""
    from engine.startup.build import build_rank  # torch, once rank 0 can be followed
    from engine.startup.device import resolve_device
    from engine.startup.ranks import meet

    adopt_library_lines()
    config = setup.config
    device = resolve_device(config.model)
    life.exchange = exchange = meet(config, Path(setup.meeting), setup.rank, device)
    if setup.self_test is not None:
        from engine.startup.verify.self_test import take_part

        take_part(config, device, setup.self_test, exchange)
    follower = Follower(build_rank(config, exchange), report)
    life.serves = True
    while True:
        message = decode(messages.get())
        assert not isinstance(message, Setup), "there is one setup"
        follower.follow(message)
        exchange.num_begun += 1


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)
