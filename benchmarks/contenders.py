"""Processes that are made ready side by side and then measure one at a time, each within its time.

A contender writes lines of JSON: one once it is ready, then one for each line that it reads. What
it or its libraries print besides goes to standard error. One that dies or takes too long is ended
with all that it started, and costs its own figures alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
Reply = dict[str, Any]


class LostError(RuntimeError):
    """A contender that has ended, or did not answer in time."""


class Contender:
    """A process of a benchmark's own module.

    Args:
        name: tells it from others in errors.
        words: the module and its flags.
        environment: what differs from this process's.
    """

    def __init__(
        self, name: str, words: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # so that what it starts can be ended with it
        )
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def reply(self, within_s: float) -> Reply:
        """Its next line.

        Raises:
            LostError: there is none within so many seconds; the process is ended.
        """
        try:
            line = self._lines.get(timeout=max(within_s, 0.001))
        except queue.Empty:
            self.end()
            raise LostError(f"{self.name}: nothing for {within_s:.0f} s") from None
        if line is None:
            self.end()
            raise LostError(f"{self.name}: ended with status {self._process.returncode}")
        found: Reply = json.loads(line)
        return found

    def ask(self, what: str) -> None:
        """Tell it what to do next; one that has ended says so at `reply`."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # ended, or ended by us
            self._process.stdin.write(what.encode() + b"\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """End it, and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)


def ready(contenders: Sequence[Contender], within_s: float) -> dict[str, Reply]:
    """The first lines of those that are ready in time, by name; prints them, and who is not."""
    found, deadline = {}, time.monotonic() + within_s
    for each in contenders:
        if (first := attempt(partial(each.reply, deadline - time.monotonic()))) is not None:
            found[each.name] = first
            show({"ready": each.name, **first})
    return found


def attempt(call: Callable[[], T]) -> T | None:
    """What a call returns; None where a contender is lost, which is printed."""
    try:
        return call()
    except LostError as error:
        show({"lost": str(error)})
        return None


def show(row: Reply) -> None:
    """Print a line of JSON at once."""
    print(json.dumps(row), flush=True)


def contend(prepare: Callable[[], tuple[Reply, Callable[[str], Reply]]]) -> NoReturn:
    """Be a contender: make ready, say so, and answer until standard input ends.

    Args:
        prepare: makes ready; returns the first line, and what answers.
    """
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def write(row: Reply) -> None:
        lines.write(json.dumps(row) + "\n")
        lines.flush()

    first, answer = prepare()
    write(first)
    for line in sys.stdin:
        write(answer(line.strip()))
    os._exit(0)  # ranks and graphs end with the process
