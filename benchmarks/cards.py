"""Benchmarks in processes of their own, one after another on a GPU, or many side by side.

A benchmark that takes too long is killed with all that it started, in whatever session: its
processes are known by a variable of their environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.parts import PARTS

OWNER = "BENCHMARK_OWNER"
LEAST_S = 20.0
"""What has less time than this is not begun."""
GRACE_S = 15.0
"""What an interrupted process has until it is killed."""
AT_ONCE = 8
"""Benchmarks that are made ready on a GPU at the same time."""
LINES = 5
"""Of a benchmark's output, those that are printed where it fails while it is made ready."""

Tell = Callable[[str, str], None]
"""Takes a part and a line that it printed."""


class Settings(NamedTuple):
    """How benchmarks are run.

    Attributes:
        cards: the GPUs, as CUDA_VISIBLE_DEVICES names them; an empty name where there is none.
        deadline: of the monotonic clock; what would begin after it is skipped.
        environment: of the benchmarks, beside this process's.
        interrupts: a process that takes too long is interrupted, and has time to say what it did.
    """

    cards: Sequence[str]
    deadline: float
    environment: Mapping[str, str]
    interrupts: bool = False

    @property
    def seconds_left(self) -> float:
        """Until the deadline."""
        return self.deadline - time.monotonic()


def run(command: Sequence[str], settings: Settings, cards: str, seconds: float, tell: Tell) -> str:
    """Run a command on GPUs, its lines going to `tell`; what went wrong, empty if nothing did."""
    owner = uuid.uuid4().hex
    environment = {**os.environ, **settings.environment, OWNER: owner, "PYTHONUNBUFFERED": "1"}
    environment["CUDA_VISIBLE_DEVICES"] = cards
    started = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    reader = threading.Thread(target=_read, args=(started, command[-1], tell), daemon=True)
    reader.start()
    try:
        status = started.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        if settings.interrupts:
            _interrupt(started)
        return f"ended after {seconds:.0f} s"
    finally:
        kill(owner)
        started.wait()
        reader.join()
    return f"ended with status {status}" if status else ""


def _interrupt(started: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(started.pid, signal.SIGINT)
        started.wait(timeout=GRACE_S)


def _read(started: subprocess.Popen[str], name: str, tell: Tell) -> None:
    assert started.stdout is not None
    with started.stdout:
        for line in started.stdout:
            tell(name, line.rstrip("\n"))


def kill(owner: str) -> None:
    """Kill every process that a benchmark has left, and what those start meanwhile."""
    while found := list(_owned(owner)):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _owned(owner: str) -> Iterable[int]:
    mark = f"{OWNER}={owner}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                # One that has ended and waits for its parent has no environment.
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    yield int(folder.name)


def command_of(name: str) -> list[str]:
    """What measures a part."""
    return [sys.executable, "-m", "benchmarks.parts", name]


def prepare(names: Sequence[str], settings: Settings) -> None:
    """Start every part with few layers, side by side, so that what it compiles is in caches."""
    layers = {**settings.environment, "BENCHMARK_LAYERS": "8"}
    settings = settings._replace(environment=layers)

    def make_ready(at: int) -> None:
        name, lines = names[at], deque[str](maxlen=LINES)
        seconds, cards = settings.seconds_left, settings.cards
        if seconds <= 0 or PARTS[name].cards > len(cards) or name.startswith("starts:"):
            return  # starts have caches of their own
        card = cards[at % len(cards)] if PARTS[name].cards == 1 else ",".join(cards)
        began = time.monotonic()
        wrong = run(command_of(name), settings, card, seconds, lambda _, line: lines.append(line))
        took = time.monotonic() - began
        print(f"ready {name}: {took:.0f} s {wrong}", flush=True)
        if wrong.startswith("ended"):
            print(*(f"    {line}" for line in lines), sep="\n", flush=True)

    with ThreadPoolExecutor(AT_ONCE * len(settings.cards)) as pool:
        list(pool.map(make_ready, range(len(names))))


def measure(names: Sequence[str], settings: Settings, tell: Tell) -> dict[str, str]:
    """Measure parts, one at a time on each GPU; what went wrong with those that did not end well.

    Those that need several GPUs come last.
    """
    wrong: dict[str, str] = {}
    lone = deque(name for name in names if PARTS[name].cards == 1)

    def work(card: str) -> None:
        with contextlib.suppress(IndexError):  # none is left
            while True:
                one(lone.popleft(), card)

    def one(name: str, cards: str) -> None:
        seconds = min(PARTS[name].seconds, settings.seconds_left)
        if seconds < LEAST_S:
            wrong[name] = "skipped: no time is left"
            return
        if said := run(command_of(name), settings, cards, seconds, tell):
            wrong[name] = said
            tell(name, said)

    with ThreadPoolExecutor(len(settings.cards)) as pool:
        list(pool.map(work, settings.cards))
    for name in names:
        if PARTS[name].cards > len(settings.cards):
            wrong[name] = f"skipped: needs {PARTS[name].cards} GPUs"
        elif PARTS[name].cards > 1:
            one(name, ",".join(settings.cards))
    return wrong
