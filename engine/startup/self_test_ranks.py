"""The self-test over several ranks: each rank draws the same, from its shard of the logits.

Rank 0 is the process of `tailrace verify`; the others are this module as a program. They read one
line, do what rank 0 does, print nothing, and end when their standard input does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import msgspec
import torch

from engine.config import EngineConfig
from engine.parallel.processes import rank_environment
from engine.parallel.programs import command_of
from engine.startup.device import resolve_device
from engine.startup.ranks import check_config, meet, set_threads, visible_gpus
from engine.startup.sampler_checks import sampler_results
from sampling.shard import LoneRank, RankExchange

COMMAND = command_of("engine.startup.self_test_ranks")


class Task(msgspec.Struct, frozen=True):
    """What a rank is told: who it is, and the self-test's own arguments."""

    config: EngineConfig
    rank: int
    meeting: str
    quick: bool
    seed: int


@contextlib.contextmanager
def drawing_ranks(
    config: EngineConfig, device: torch.device, *, quick: bool, seed: int
) -> Iterator[RankExchange]:
    """Start the other ranks of a configuration; gives rank 0's exchange with them.

    One that is lost ends this process, which may wait for it on the device.

    Raises:
        ConfigError: there are fewer GPUs, or the settings are none for several ranks.
    """
    size = config.tensor_parallel_size
    if size == 1:
        yield LoneRank()
        return
    check_config(config, device)
    gpus = visible_gpus(size) if device.type == "cuda" else ()
    folder = tempfile.mkdtemp(prefix="tailrace-ranks-")
    meeting, is_done = Path(folder) / "meeting", threading.Event()
    processes = [
        subprocess.Popen(COMMAND, stdin=PIPE, env=rank_environment(rank, gpus))
        for rank in range(1, size)
    ]
    try:
        for rank, process in enumerate(processes, 1):
            task = Task(config, rank, str(meeting), quick, seed)
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(task) + b"\n")
            process.stdin.flush()
            threading.Thread(target=_watch, args=(rank, process, is_done), daemon=True).start()
        set_threads(config)
        yield meet(config, meeting, 0, device)
    finally:
        is_done.set()
        for process in processes:
            process.kill()
            process.__exit__(None, None, None)  # closes its pipe and waits
        shutil.rmtree(folder, ignore_errors=True)


def _watch(rank: int, process: subprocess.Popen[bytes], is_done: threading.Event) -> None:
    status = process.wait()
    if not is_done.is_set():
        print(f"tailrace: error: rank {rank} ended (status {status})", file=sys.stderr, flush=True)
        os._exit(1)


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    """Be a rank other than 0."""
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=Task)
    threading.Thread(target=_end_with_input, daemon=True).start()
    set_threads(task.config)
    device = resolve_device(task.config.model)
    exchange = meet(task.config, Path(task.meeting), task.rank, device)
    for _ in sampler_results(task.config, device, task.quick, task.seed, exchange):
        pass
    threading.Event().wait()  # until rank 0 has read the last of it


if __name__ == "__main__":
    main()
