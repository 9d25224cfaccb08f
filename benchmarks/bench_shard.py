"""The sampler over two GPUs, each with half of the logits, beside one GPU with all of them.

    python -m benchmarks.bench_shard
    python -m benchmarks.bench_shard --rows 4      # on a CPU, to see that it runs

Prints a line of JSON a case as soon as it is there: microseconds of a draw in a replayed CUDA graph
on one rank and on two, and whether both drew the same tokens; then a line a case of what the
exchanges and the kernels around them take on two (from a profile, waiting for the other rank
included). The three processes are made ready side by side and measure one case after another; ranks
that hang are ended.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.bench_sampling import make_batch, timed_us
from benchmarks.contenders import Contender, Reply, attempt, contend, ready, show
from engine.parallel.collectives import GlooExchange
from sampling.device.compiling import compiling_together
from sampling.device.ranks import LoneRank, RankExchange
from sampling.params import SamplingParams
from sampling.paths import torch_path, triton_path
from sampling.vocab_shard import VocabShard

MODULE = "benchmarks.bench_shard"
VOCAB_SIZE = 151936
SIZE = 2
ALONE = "alone"
RANKS = tuple(f"rank {rank} of {SIZE}" for rank in range(SIZE))
HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if HAS_GPU else torch.device("cpu")
MUST_ROWS = 256
CASE_S = 15.0
"""Seconds after which a case counts as hung."""


class Case(NamedTuple):
    """A draw.

    Attributes:
        scale: standard deviation of the logits.
        must: microseconds of the exchange at `MUST_ROWS`.
    """

    scale: float
    wish: dict[str, Any]
    must: float | None = None


CASES = {
    "plain": Case(3.0, {}, 40.0),
    "top-k 50, top-p 0.95": Case(3.0, {"top_k": 50, "top_p": 0.95}, 80.0),
    "flat top-p 0.95": Case(0.3, {"top_p": 0.95}, 250.0),
    "5 logprobs": Case(3.0, {"logprobs": 5}),
}
EXCHANGES = ("_exchange_kernel", "_packed_kernel", "_rows_kernel", "_merge", "_settle", "_count_")
"""What the names of kernels that rank alone needs begin with or hold."""


def drawing(num_rows: int, name: str, exchange: RankExchange) -> Callable[[], Tensor]:
    """A draw, which returns tokens."""
    case, path = CASES[name], triton_path if HAS_GPU else torch_path
    batch, rows = make_batch(num_rows, VOCAB_SIZE, SamplingParams(**case.wish), DEVICE)
    rows.shard = shard = VocabShard.split(VOCAB_SIZE, exchange)
    torch.manual_seed(5)
    logits = torch.randn(num_rows, VOCAB_SIZE, device=DEVICE).mul_(case.scale)
    own = logits[:, shard.first : shard.first + shard.width].contiguous()
    return lambda: path.draw(own, batch, rows).token_ids


class Drawn(NamedTuple):
    """A draw that can be done again, and the tokens that it leaves.

    Attributes:
        draw: holds what a graph reads, which owns none of it.
    """

    again: Callable[[], Any]
    tokens: Tensor
    draw: Callable[[], Tensor]


def captured(draw: Callable[[], Tensor]) -> Drawn:
    """A draw as a graph."""
    if not HAS_GPU:
        return Drawn(draw, draw(), draw)
    for _ in range(2):
        draw()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = draw()
    return Drawn(graph.replay, tokens, draw)


def profiled(again: Callable[[], Any], repeat: int = 20) -> dict[str, float]:
    """Microseconds of each kernel in one replay."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeat):
            again()
        torch.cuda.synchronize()
    return {
        each.key: each.device_time_total / repeat
        for each in profile.key_averages()
        if each.device_time_total
    }


def timed(again: Callable[[], Any]) -> float:
    """Microseconds of a draw; every rank does it as often."""
    if HAS_GPU:
        return timed_us(again)
    started = time.perf_counter()
    again()
    return 1e6 * (time.perf_counter() - started)


def prepare(
    rank: int, size: int, meeting: Path, counts: list[int]
) -> tuple[Reply, Callable[[str], Reply]]:
    """Compile and capture all cases; returns what there is to say of it, and what measures them."""
    started = time.perf_counter()
    exchange: RankExchange = LoneRank()
    if size > 1 and HAS_GPU:
        from engine.parallel.device_exchange import DeviceExchange

        torch.cuda.set_device(0)
        exchange = DeviceExchange(meeting, rank, size, DEVICE)
    elif size > 1:
        exchange = GlooExchange(meeting, rank, size)
    with compiling_together():
        for name in CASES:
            drawing(1, name, exchange)()
    drawn = {
        (name, count): captured(drawing(count, name, exchange))
        for count in counts
        for name in CASES
    }

    def answer(line: str) -> Reply:
        what, name, count = json.loads(line)
        again, tokens, _ = drawn[name, count]
        if what == "time":
            us = timed(again)
            return {"us": round(us, 1), "tokens": zlib.crc32(tokens.cpu().numpy().tobytes())}
        kernels = profiled(again) if HAS_GPU else {}
        told = sum(us for key, us in kernels.items() if any(each in key for each in EXCHANGES))
        return {
            "exchange_us": round(told, 1),
            "kernels": {key[:40]: round(us, 1) for key, us in kernels.items()},
        }

    return {"ready_s": round(time.perf_counter() - started, 1)}, answer


def main() -> None:
    """Start the processes, then measure one case after another."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default="256,1")
    parser.add_argument("--kernels", action="store_true", help="print each kernel's share too")
    parser.add_argument("--start", type=float, default=60.0, help="seconds for all to be ready")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds in all")
    parser.add_argument("--rank", type=int, help="be a process of this rank")
    parser.add_argument("--size", type=int, help="of so many")
    parser.add_argument("--meeting", type=Path)
    asked = parser.parse_args()
    counts = [int(count) for count in asked.rows.split(",")]
    if asked.rank is not None:
        contend(lambda: prepare(asked.rank, asked.size, asked.meeting, counts))
    with tempfile.TemporaryDirectory() as folder:
        processes = _begin(f"{folder}/meeting", asked.rows)
        timer = threading.Timer(asked.limit, _end, (processes, asked.limit))
        timer.daemon = True
        timer.start()
        try:
            there = ready(list(processes.values()), asked.start)
            compare({name: processes[name] for name in there}, counts, asked.kernels)
        finally:
            for process in processes.values():
                process.end()


def _begin(meeting: str, rows: str) -> dict[str, Contender]:
    """Start one rank that is alone, and those that are not, each with its own GPU first."""
    processes = {}
    for name, rank, size in ((ALONE, 0, 1), *((RANKS[rank], rank, SIZE) for rank in range(SIZE))):
        words = [MODULE, "--rank", str(rank), "--size", str(size), "--meeting", meeting]
        processes[name] = Contender(name, [*words, "--rows", rows], _environment(rank))
    return processes


def compare(there: dict[str, Contender], counts: list[int], has_kernels: bool) -> None:
    """Time every case on one rank and on two, then profile two; prints each as it comes.

    What has been profiled may be timed no more: the profiler stays with the process.
    """
    cases = [(name, count) for count in counts for name in CASES]
    for name, count in cases:
        alone = _together(there, (ALONE,), ["time", name, count])
        both = _together(there, RANKS, ["time", name, count])
        row: Reply = {"case": name, "rows": count}
        row |= {"one_us": alone[0]["us"]} if alone else {}
        row |= {"two_us": both[0]["us"]} if both else {}
        if alone and both:
            row["same_tokens"] = len({each["tokens"] for each in (*alone, *both)}) == 1
        show(row)
    for name, count in cases:
        for found in _together(there, RANKS, ["profile", name, count])[:1]:
            row = {"case": name, "rows": count, "exchange_us": found["exchange_us"]}
            row |= {"must be": CASES[name].must} if count == MUST_ROWS else {}
            show(row | ({"kernels": found["kernels"]} if has_kernels else {}))


def _together(there: dict[str, Contender], names: tuple[str, ...], what: list[Any]) -> list[Reply]:
    """What processes say that do the same at once; nothing once one of them is lost."""
    if not there.keys() >= set(names):
        return []
    for name in names:
        there[name].ask(json.dumps(what))
    found = attempt(lambda: [there[name].reply(CASE_S) for name in names])
    if found is None:
        for name in names:
            there.pop(name).end()
    return found or []


def _end(processes: dict[str, Contender], limit_s: float) -> None:
    show({"ended": f"after {limit_s:.0f} s"})
    for process in processes.values():
        process.end()
    os._exit(1)


def _environment(rank: int) -> dict[str, str]:
    """What a rank sees: its own GPU first."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    own = names[rank % len(names)]
    return {"CUDA_VISIBLE_DEVICES": ",".join([own, *(name for name in names if name != own)])}


if __name__ == "__main__":
    main()
