"""Which figures stand for a server's speed over HTTP, with random weights.

Loads come from `tailrace bench` in processes of their own, so that what a client's parser costs is
not measured as the server's.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks import bench_engine
from benchmarks.bench_serving import complete, measure, serving, stream
from benchmarks.engine_figures import agreement_text
from benchmarks.figures import Figure, figure
from benchmarks.peer import agreement, dummy_peer
from benchmarks.shapes import QWEN3, shape_config, weight_bytes, write_shape
from server.bench.figures import Figures
from server.bench.results import read_results
from server.bench.workloads import make_workload

COPY_GB_PER_S = 4298
FLAGS = (
    *("--load-format", "dummy", "--disable-uvicorn-access-log"),
    *("--gpu-memory-utilization", "0.8"),  # transformers' own model is compared beside it
)
SMALL, LLAMA = "qwen3-0.6b", "llama-8b"
BUILT, PACKED = "modules built, kernels not", "kernels of a pack"
STARTS: dict[str, tuple[float, float | None]] = {
    "nothing built": (18.0, 12.0),
    BUILT: (18.0, 12.0),
    "warm": (8.0, 5.0),
    PACKED: (8.0, 5.0),
}
"""Seconds that the starts of the small shape must take at most, and ought to."""
FIRST_TOKEN_MS = {SMALL: 7.0, "qwen3-8b": 15.0}
"""Milliseconds to the first token of a lone request of 128."""
STREAM_MS = {SMALL: 0.62, "qwen3-8b": 4.7}
TOKENS_PER_S = {
    (SMALL, "greedy"): 60_000.0,
    (SMALL, "mixed"): 30_000.0,
    (LLAMA, "greedy"): 26_500.0,
    (LLAMA, "burst"): 7_800.0,
}
BESIDE_FLAGS, MANY_FLAGS = ("--max-gap-ms", "10"), ("--max-num-seqs", "1024")


def start_figures(shape: str) -> Iterator[Figure]:
    """Seconds from the command to the first request a server takes, over what was there before."""
    command = f"python -m benchmarks.record --parts starts:{shape}"
    made_by = {"command": command, "check": "the server answered /ready"}
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ):
        model = str(write_shape(shape, Path(folder) / "model"))
        os.environ["FLASHINFER_WORKSPACE_BASE"] = f"{folder}/modules"
        os.environ["CUDA_CACHE_PATH"] = f"{folder}/cuda"
        for name, (most, aim) in STARTS.items():
            if name == PACKED:
                if not torch.cuda.is_available():
                    continue  # a pack takes a GPU's kernels
                _pack(model, Path(folder) / "pack")
            if name == BUILT:  # with the kernels of the start before
                _warm_up(model)
            if name != "warm":
                os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(dir=folder)
            started = time.monotonic()
            with serving(model, *FLAGS, "--no-wait-for-kernels"):
                seconds = round(time.monotonic() - started, 1)
            print("start", shape, name, seconds, flush=True)
            what = f"{shape}, start until ready, {name}"
            yield figure(what, seconds, "s", "<=", most, None, aim) | made_by


def _warm_up(model: str, *flags: str) -> None:
    command = (sys.executable, "-m", "server.cli", "warmup", model, *FLAGS, *flags)
    subprocess.run(command, check=True)


def _pack(model: str, folder: Path) -> None:
    """Pack a model's kernels, and have the servers from now on find them."""
    _warm_up(model, "--pack", str(folder))
    places = [str(folder), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, places))


def serving_figures(shape: str) -> Iterator[Figure]:
    """The figures of one shape, its lone requests first."""
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_shape(shape, Path(folder) / "model"))
        made_by = {"command": f"python -m benchmarks.record --parts serving:{shape}"}
        with serving(model, *FLAGS) as url:
            asyncio.run(_warm_client())
            firsts = [_first_token_ms(url, attempt) for attempt in range(8)]
            print("first tokens, ms", firsts, flush=True)
            made_by["check"] = "" if shape == LLAMA else _check(url, model)
            what, most = f"{shape}, lone first token of 128", FIRST_TOKEN_MS.get(shape)
            yield figure(what, sorted(firsts)[4], "ms", "<=", most, None) | made_by
            yield figure(f"{what}, at once", firsts[0], "ms", "<=", most, None) | made_by
            names = "single,greedy,burst" + (",mixed,topkp,sampled" if shape == SMALL else "")
            for made in _rates(shape, bench(url, shape, names)):
                yield made | made_by
            if shape == SMALL:
                for made in (*_streams(shape, url), *_arrivals(shape, url)):
                    yield made | made_by
        if shape == SMALL:
            for flags, figures_of in ((BESIDE_FLAGS, _beside), (MANY_FLAGS, _many_streams)):
                with serving(model, *FLAGS, *flags) as url:
                    for made in figures_of(shape, url):
                        yield made | made_by


def bench(
    url: str, shape: str, workloads: str, *flags: str, processes: int = 6
) -> dict[str, Figures]:
    """What `tailrace bench` finds for some workloads: the figures of the best pass, by workload.

    Raises:
        RuntimeError: some request failed.
    """
    vocab_size = str(shape_config(shape)["vocab_size"])
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "bench.json"
        command = [sys.executable, "-m", "server.cli", "bench", "--base-url", url]
        command += ["--workloads", workloads, "--processes", str(processes)]
        command += ["--vocab-size", vocab_size, "--output", str(output), *flags]
        subprocess.run(command, check=True, timeout=300)
        points = read_results(output).points
    failed = {point.workload: point.errors for point in points if point.errors}
    if failed:
        raise RuntimeError(f"requests failed: {failed}")
    return {point.workload: point.figures for point in points}


def _rates(shape: str, found: dict[str, Figures]) -> Iterator[Figure]:
    """One stream's milliseconds a token, and tokens a second of what is answered in one piece."""
    for name, figures in found.items():
        if name == "single":
            bound = round(weight_bytes(shape) / COPY_GB_PER_S / 1e6, 3)
            value, most = round(1e3 * figures["token_p50_s"], 3), STREAM_MS.get(shape)
            yield figure(f"{shape}, one stream over HTTP", value, "ms", "<=", most, bound)
        else:
            what, rate = f"{shape}, `{name}` over HTTP", round(figures["output_tokens_per_s"], 1)
            yield figure(what, rate, "tokens/s", ">=", TOKENS_PER_S.get((shape, name)), None)


def _streams(shape: str, url: str) -> Iterator[Figure]:
    """256 streams, logprobs beside none, and scores, by several client processes."""
    found = bench(url, shape, "stream,stream-lp,temp,logprobs")
    plain, with_logprobs = found["stream"], found["stream-lp"]
    rate = plain["output_tokens_per_s"]
    yield figure(f"{shape}, 256 streams: output", round(rate), "tokens/s", ">=", None, None)
    for name, figures, limits in (
        ("", plain, ((8.0, None), (0.9, None))),
        (" with logprobs=5", with_logprobs, ((15.0, 10.0), (0.9, 1.0))),
    ):
        gap = round(1e3 * figures["longest_gap_p50_s"], 1)
        what, ((most, least_gap), (must, aim)) = f"{shape}, 256 streams{name}", limits
        yield figure(f"{what}: longest gap, median", gap, "ms", "<=", most, None, least_gap)
        chunks = round(figures["chunks_per_s"] / figures["output_tokens_per_s"], 3)
        yield figure(f"{what}: chunks a token", chunks, "ratio", ">=", must, 1.0, aim)
    share = round(with_logprobs["output_tokens_per_s"] / rate, 3)
    what = f"{shape}, 256 streams with logprobs=5: throughput over without"
    yield figure(what, share, "ratio", ">=", 0.93, 1.0)
    temp, logprobs = (found[name]["output_tokens_per_s"] for name in ("temp", "logprobs"))
    what = f"{shape}, T 0.8: throughput with logprobs=5 over without, 6 client processes"
    yield figure(what, round(logprobs / temp, 3), "ratio", ">=", 0.93, 1.0)
    scored = bench(url, shape, "score", processes=4)["score"]["requests_per_s"]
    what = f"{shape}, separate score requests, 4 client processes"
    yield figure(what, round(scored), "requests/s", ">=", 2_500.0, None)


def _beside(shape: str, url: str) -> Iterator[Figure]:
    """Gaps of streams beside which prompts arrive."""
    found = bench(url, shape, "stream-beside", "--rate", "20")["stream-beside"]
    gap = round(1e3 * found["longest_gap_p50_s"], 1)
    what = f"{shape}, 256 streams while prompts of 512 arrive: longest gap, median"
    yield figure(what, gap, "ms", "<=", 15.0, None)


def _many_streams(shape: str, url: str) -> Iterator[Figure]:
    """1,024 streams over 256, both of one server, which has rows for all of them."""
    rates = []
    for seed, count in ((1, 256), (2, 1024)):  # a seed each: prompts of one are another's prefixes
        flags = ("--num-requests", str(count), "--seed", str(seed))
        rates.append(bench(url, shape, "stream", *flags)["stream"]["output_tokens_per_s"])
        what = f"{shape}, {count:,} streams, 1,024 rows: output"
        yield figure(what, round(rates[-1]), "tokens/s", ">=", None, None)
    share = round(rates[1] / rates[0], 3)
    yield figure(f"{shape}, 1,024 streams: throughput over 256", share, "ratio", ">=", 1.3, None)


def _arrivals(shape: str, url: str) -> Iterator[Figure]:
    """Latencies where requests arrive at 70 % of the rate at which they are got through."""
    found = asyncio.run(measure(url, "poisson", QWEN3["vocab_size"], 0))
    rate = found["arrivals_per_s"]
    yield figure(f"{shape}, `poisson`: arrivals", rate, "requests/s", ">=", None, None)
    for key in ("first_token", "token", "longest_gap"):
        what = f"{shape}, `poisson`: 99th percentile, {key.replace('_', ' ')}"
        yield figure(what, round(found[f"{key}_p99_s"] * 1e3, 1), "ms", "<=", None, None)


async def _warm_client() -> None:
    """Stream a reply that is there already: what a client does once is no time of the server's."""
    event = b"data: {}\n\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(event)

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + event)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as canned:
        port = canned.sockets[0].getsockname()[1]
        await stream(f"http://127.0.0.1:{port}", [{"prompt": [0] * 128, "max_tokens": 1}])


def _first_token_ms(url: str, attempt: int) -> float:
    """Milliseconds to the first token of a lone request with a fresh prompt of 128 tokens."""
    ids = random.Random(attempt).choices(range(1000, 100_000), k=128)
    body: dict[str, Any] = {"prompt": ids, "max_tokens": 16, "min_tokens": 16, "temperature": 0}
    return round(1e3 * asyncio.run(stream(url, [body]))["first_token_p50_s"], 2)


def _check(url: str, model: str) -> str:
    """Compare greedy tokens of eight requests at once with transformers' for the same weights."""
    bodies = make_workload("greedy", QWEN3["vocab_size"], seed=99)[:8]
    replies = asyncio.run(complete(url, [body | {"return_token_ids": True} for body in bodies]))
    tokens = {i: reply["choices"][0]["token_ids"] for i, reply in enumerate(replies)}
    row = agreement(dummy_peer(model, torch.device("cuda")), bodies, tokens)
    print("check", row, flush=True)
    if row["worst_gap"] > bench_engine.MARGIN:
        raise RuntimeError(f"greedy tokens are wrong: {row}")
    torch.cuda.empty_cache()
    return f"over HTTP, {agreement_text(row)}"
