"""The processes of ranks 1 and up, as rank 0 sees them. No torch.

Each is sent messages over its standard input, a length and as many bytes each, and ends when
that does. Its standard output carries lines of status: a `RankStatus` twice a second, from before
it imports torch, one with every adapter that it has read, and one with an error before it ends by
itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from subprocess import PIPE
from typing import IO, NamedTuple

import msgspec

from engine.awake import AwakeClock
from engine.config import EngineConfig
from engine.contracts.adapters import AdapterSource
from engine.parallel.messages import Message, RankTest, ReadAdapter, Setup, encode
from engine.parallel.programs import command_of
from engine.parallel.readings import RankReading, RankReadings

COMMAND = command_of("engine.startup.rank")
"""The command that starts one of them."""
LENGTH_BYTES = 8
"""Of the number in front of each message, little-endian."""
WATCH_S = 0.5
"""Seconds between looks at the ranks."""
SILENCE_S = 10.0
"""Seconds without a status after which a rank counts as hung."""
START_SILENCE_S = 60.0
"""The same of a rank that starts, unless it was stopped. Whoever loads a library holds the
interpreter all the while: torch's are some gigabytes, which a cold disk reads for half a minute,
and ranks that start together take the disk and the cores from each other."""
START_LIMIT_S = 600.0
"""Seconds in which others wait for a rank that starts after which it counts as hung. All ranks do
the same work until then, but reading weights may take one some minutes more than another."""
GRACE_S = 2.0
"""Seconds in which a rank that fails has reported why, once others notice."""


_RUNNING: set[subprocess.Popen[bytes]] = set()


def end_ranks() -> None:
    """Kill the ranks of this process, which ends at once.

    They end with their standard input, but one that was stopped would not notice.
    """
    for process in tuple(_RUNNING):
        process.kill()


class RankStatus(msgspec.Struct, frozen=True):
    """A line from a rank.

    Attributes:
        num_begun: exchanges and messages it has come to; -1 before it meets the others.
        serves: whether it has started.
        error: why it ends; None while it goes on.
        reading: of an adapter, that has ended.
    """

    num_begun: int = -1
    serves: bool = False
    error: str | None = None
    reading: RankReading | None = None


class _Heard(NamedTuple):
    """What was heard last of a rank, and when; first of all that it was started."""

    at: float
    status: RankStatus


class RankProcesses:
    """The other ranks of an engine whose rank 0 this process is.

    Args:
        on_lost: called once, on another thread, when the first of them is lost; gets the reason,
            which names the rank.
        command: starts one of them.
        gpus: of each rank, as CUDA_VISIBLE_DEVICES names them; none for ranks on a CPU.
        self_test: what they do before they serve.

    Attributes:
        num_sent: messages sent so far.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_lost: Callable[[str], None],
        command: Sequence[str] = COMMAND,
        gpus: Sequence[str] = (),
        self_test: RankTest | None = None,
    ) -> None:
        self.num_sent = 0
        self._folder = Path(tempfile.mkdtemp(prefix="tailrace-ranks-"))
        # Before the engine's own limit, whose message names no rank.
        self._step_limit_s = 0.75 * config.step_timeout_s
        self._on_lost = on_lost
        self._lost = threading.Event()
        self._reason = ""
        self._readings = RankReadings(config.tensor_parallel_size)
        self._lock = threading.Lock()
        self._num_begun: Callable[[], int] = lambda: 0
        self._processes = [
            subprocess.Popen(command, stdin=PIPE, stdout=PIPE, env=rank_environment(rank, gpus))
            for rank in range(1, config.tensor_parallel_size)
        ]
        _RUNNING.update(self._processes)
        self._awake = AwakeClock()
        began = _Heard(self._awake.seconds, RankStatus())
        self._heard = {rank: began for rank, _ in enumerate(self._processes, 1)}
        self._threads = []
        for rank, process in enumerate(self._processes, 1):
            _write(process, encode(Setup(config, rank, str(self.meeting), self_test)))
            thread = threading.Thread(target=self._follow, args=(rank, process), daemon=True)
            thread.start()
            self._threads.append(thread)
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def meeting(self) -> Path:
        """The file at which the ranks meet."""
        return self._folder / "meeting"

    @property
    def pids(self) -> list[int]:
        """The process ids of ranks 1 and up."""
        return [process.pid for process in self._processes]

    def have_met(self, num_begun: Callable[[], int]) -> None:
        """All of them have come to the meeting.

        Args:
            num_begun: the exchanges and messages that rank 0 has come to.
        """
        shutil.rmtree(self._folder, ignore_errors=True)
        self._num_begun = num_begun

    def send(self, message: Message) -> None:
        """Send a message to all of them; one that is lost is noticed elsewhere."""
        raw = encode(message)
        for process in self._processes:
            _write(process, raw)
        self.num_sent += 1

    def read(self, number: int, source: AdapterSource) -> list[Future[bytes]]:
        """Let each of them read an adapter; its digests by rank, see `RankReadings`."""
        readings = self._readings.begin(number)
        self.send(ReadAdapter(number, source))
        return readings

    def failure(self) -> str | None:
        """Why a rank was lost, if one was or is found to be within `GRACE_S`."""
        return self._reason if self._lost.wait(GRACE_S) else None

    def close(self) -> None:
        """End them and wait until they are gone."""
        with self._lock:
            self._on_lost = lambda reason: None
        self._lost.set()
        self._readings.lose("the ranks were ended")
        for process, thread in zip(self._processes, self._threads, strict=True):
            process.kill()
            process.wait()
            thread.join()
            with contextlib.suppress(BrokenPipeError):
                process.__exit__(None, None, None)  # closes its pipes
        _RUNNING.difference_update(self._processes)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _follow(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Hear a rank's status until it ends."""
        assert process.stdout is not None
        reason = ""
        for line in process.stdout:
            status = msgspec.json.decode(line, type=RankStatus)
            if status.error is not None:
                reason = f": {status.error}"
                break
            self._heard[rank] = _Heard(self._awake.seconds, status)
            if status.reading is not None:
                self._readings.end(rank, status.reading)
        else:
            reason = f" (status {process.wait()})"
        self._lose(f"rank {rank} ended{reason}")

    def _watch(self) -> None:
        """Lose a rank that is silent, or that the others wait for longer than they should."""
        stuck: dict[int, tuple[int, float]] = {}  # exchanges a rank had come to, and since when
        while not self._lost.wait(WATCH_S):
            self._awake.tick()
            now, begun = self._awake.seconds, self._num_begun()
            for rank, process in enumerate(self._processes, 1):
                heard_at, status = self._heard[rank]
                may_be_busy = not status.serves and not _is_stopped(process)
                if now - heard_at > (START_SILENCE_S if may_be_busy else SILENCE_S):
                    self._lose(f"rank {rank} has been silent for {now - heard_at:.0f} s")
                if status.num_begun >= begun or stuck.get(rank, (-2, 0.0))[0] != status.num_begun:
                    stuck[rank] = status.num_begun, now
                elif now - stuck[rank][1] > (limit_s := self._limit_s(status)):
                    doing = "a step" if status.serves else "the start"
                    self._lose(f"rank {rank} has kept {doing} waiting for {limit_s:g} s")

    def _limit_s(self, status: RankStatus) -> float:
        """Seconds for which a rank may keep the others waiting."""
        return self._step_limit_s if status.serves else max(START_LIMIT_S, self._step_limit_s)

    def _lose(self, reason: str) -> None:
        with self._lock:
            if self._lost.is_set():
                return
            self._reason = reason
            self._lost.set()
            on_lost = self._on_lost
        on_lost(reason)
        self._readings.lose(reason)  # by now the engine has ended, where that is what it does


def read_message(stream: IO[bytes]) -> bytes | None:
    """The bytes of the next message of a rank's standard input; None at its end."""
    head = stream.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "little")
    raw = stream.read(length)
    return raw if len(raw) == length else None


def rank_environment(rank: int, gpus: Sequence[str]) -> dict[str, str] | None:
    """The environment of a rank, whose own GPU comes first; None is this process's."""
    if not gpus:
        return None
    own = gpus[rank]
    others = [name for name in gpus if name != own]
    return os.environ | {"CUDA_VISIBLE_DEVICES": ",".join([own, *others])}


def _is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether a child was stopped by a signal and has not been continued."""
    try:
        found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # it has ended
        return False
    return found is not None


def _write(process: subprocess.Popen[bytes], raw: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(len(raw).to_bytes(LENGTH_BYTES, "little") + raw)
        process.stdin.flush()
