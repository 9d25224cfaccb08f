"""The sampler over two GPUs, each with half of the logits, beside one GPU with all of them.

    python -m benchmarks.bench_shard

Prints a line of JSON a case: microseconds of a draw in a replayed CUDA graph on one rank and on
two, those that the exchanges and the kernels around them take on two (`exchange`, from a profile,
waiting for the other rank included), and whether both drew the same tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench_sampling import make_batch, timed_us
from engine.parallel.device_exchange import DeviceExchange
from sampling.compiling import compiling_together
from sampling.params import SamplingParams
from sampling.paths import triton_path
from sampling.shard import LoneRank, RankExchange, VocabShard

VOCAB_SIZE = 151936
SIZE = 2
CASES: dict[str, tuple[float, dict[str, Any]]] = {
    "plain": (3.0, {}),
    "top-k 50, top-p 0.95": (3.0, {"top_k": 50, "top_p": 0.95}),
    "flat top-p 0.95": (0.3, {"top_p": 0.95}),
    "5 logprobs": (3.0, {"logprobs": 5}),
}
"""Standard deviations of the logits, and parameters."""
EXCHANGES = ("_exchange_kernel", "_packed_kernel", "_rows_kernel", "_merge", "_settle", "_count_")
"""What the names of kernels that rank alone needs begin with or hold."""


def drawing(num_rows: int, name: str, exchange: RankExchange) -> Callable[[], Tensor]:
    """A draw, which returns tokens."""
    scale, wish = CASES[name]
    device = torch.device("cuda", 0)
    batch, rows = make_batch(num_rows, VOCAB_SIZE, SamplingParams(**wish), device)
    rows.shard = shard = VocabShard.split(VOCAB_SIZE, exchange)
    torch.manual_seed(5)
    logits = torch.randn(num_rows, VOCAB_SIZE, device=device).mul_(scale)
    own = logits[:, shard.first : shard.first + shard.width].contiguous()
    return lambda: triton_path.draw(own, batch, rows).token_ids


def captured(draw: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A draw as a graph, and the tokens that it leaves."""
    for _ in range(2):
        draw()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = draw()
    return graph, tokens


def profiled(graph: torch.cuda.CUDAGraph, repeat: int = 20) -> dict[str, float]:
    """Microseconds of each kernel in one replay."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeat):
            graph.replay()
        torch.cuda.synchronize()
    return {
        each.key: each.device_time_total / repeat
        for each in profile.key_averages()
        if each.device_time_total
    }


def compile_cases(exchange: RankExchange) -> None:
    """Compile the kernels of all cases together."""
    with compiling_together():
        for name in CASES:
            drawing(1, name, exchange)()


def measured_cases(exchange: RankExchange, row_counts: list[int]) -> list[dict[str, Any]]:
    """What one rank measures of every case."""
    rows = []
    for name in CASES:
        for num_rows in row_counts:
            graph, tokens = captured(drawing(num_rows, name, exchange))
            us = timed_us(graph.replay)
            kernels = profiled(graph)
            told = sum(us for key, us in kernels.items() if any(each in key for each in EXCHANGES))
            row = {"case": name, "rows": num_rows, "us": round(us, 1), "told": round(told, 1)}
            row["kernels"] = {key[:40]: round(us, 1) for key, us in kernels.items()}
            rows.append(row | {"tokens": tokens.tolist()})
    return rows


def main() -> None:
    """Measure one rank, then two."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int)
    parser.add_argument("--size", type=int)
    parser.add_argument("--meeting", default="")
    parser.add_argument("--rows", default="1,256")
    parser.add_argument("--kernels", action="store_true", help="print each kernel's share too")
    arguments = parser.parse_args()
    if arguments.rank is not None:
        counts = [int(count) for count in arguments.rows.split(",")]
        torch.cuda.set_device(0)
        exchange: RankExchange = LoneRank()
        if arguments.size > 1:
            meeting, device = Path(arguments.meeting), torch.device("cuda", 0)
            exchange = DeviceExchange(meeting, arguments.rank, arguments.size, device)
        compile_cases(exchange)
        print(json.dumps(measured_cases(exchange, counts)), flush=True)
        return
    alone = _measured(1, arguments.rows)
    for one, two in zip(alone, _measured(SIZE, arguments.rows), strict=True):
        line = {"case": one["case"], "rows": one["rows"], "one_us": one["us"], "two_us": two["us"]}
        line |= {"exchange_us": two["told"], "same_tokens": one["tokens"] == two["tokens"]}
        if arguments.kernels:
            line |= {"kernels": two["kernels"]}
        print(json.dumps(line), flush=True)


def _measured(size: int, rows: str) -> list[dict[str, Any]]:
    """What rank 0 of `size` measures, each a process that sees its own GPU first."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.bench_shard", "--size", str(size)]
        command += ["--meeting", f"{folder}/meeting", "--rows", rows]
        processes = [
            subprocess.Popen(
                [*command, "--rank", str(rank)], stdout=subprocess.PIPE, env=_environment(rank)
            )
            for rank in range(size)
        ]
        output = processes[0].communicate()[0]
        for process in processes[1:]:
            process.communicate()
    found: list[dict[str, Any]] = json.loads(output.splitlines()[-1])
    return found


def _environment(rank: int) -> dict[str, str]:
    """The environment of a rank, whose own GPU is the first that it sees."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    others = [name for name in names if name != names[rank]]
    return os.environ | {"CUDA_VISIBLE_DEVICES": ",".join([names[rank], *others])}


if __name__ == "__main__":
    main()
