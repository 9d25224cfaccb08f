"""One engine over several GPUs beside one over one, in one run: a stream, full steps, throughput.

    python -m benchmarks.bench_parallel                    # 8B on one GPU and on two
    python -m benchmarks.bench_parallel --shape tiny       # on a CPU, to see that it runs

Engines with the same random weights, plain ones and such with an EAGLE head, are started side by
side; then they measure in turns, the most important figure first. Each figure is a line of JSON as
soon as it is there, and one with its ratio to the first size. An engine that is not ready
after `--start` seconds, or hangs, is ended; the rest goes on, and all ends after `--limit` seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.contenders import Contender, Reply, attempt, contend, ready, show
from benchmarks.shapes import BIG, SHAPES, TINY, cache_bytes_per_token, write_shape
from server.bench.workloads import Lengths

MODULE = "benchmarks.bench_parallel"


class Scale(NamedTuple):
    """How large everything is.

    Attributes:
        rows: of the engines, and of a full step.
        cache_tokens: of each plain engine's KV cache; both sizes get the same.
        lengths: of the workloads' requests; None leaves them.
    """

    rows: int
    cache_tokens: int
    max_model_len: int
    step_tokens: int
    lengths: Lengths | None


FULL = Scale(256, 300_000, 4096, 8192, None)
TRIAL = Scale(8, 4096, 1024, 64, Lengths(size=8, input=16, output=16))
EAGLE_ROWS = 8
"""Of an engine with a head; one of them gets a request."""
CONTEXT_BYTES, UTILIZATION = 600 << 20, 0.9
"""What the driver keeps on a GPU, and the server's default, for the tokens that a KV cache would
hold if its engine were alone."""


class Figure(NamedTuple):
    """What is measured, in order of importance.

    Attributes:
        workload: a name of `server.bench.workloads`, or "eagle".
        key: of the reply.
        must: of two ranks over one; of "eagle" milliseconds of two.
        within_s: after so many seconds the engine counts as hung.
    """

    workload: str
    key: str
    must: float
    within_s: float


FIGURES = (
    Figure("single", "step_ms", 0.67, 20.0),
    Figure("temp", "step_ms", 0.64, 25.0),
    Figure("eagle", "ms_a_token", 1.7, 20.0),
    Figure("burst", "tokens_per_s", 1.6, 40.0),
    Figure("mixed", "tokens_per_s", 1.6, 60.0),
)


def scale_of(shape: str) -> Scale:
    """The scale at which a shape is measured."""
    return TRIAL if shape == TINY else FULL


def prepare(size: int, shape: str, folder: Path, *, eagle: bool) -> tuple[Reply, Any]:
    """Build an engine over `size` ranks; returns what is to be said of it, and what measures it.

    Args:
        folder: has the shape in `target`; a head is written beside it.
    """
    from engine.logs import configure_logging
    from engine.startup import build, memory, sizes

    configure_logging("info", "text", "engine", "sampling")
    profiles: list[memory.MemoryProfile] = []

    def noting(*arguments: Any) -> memory.MemoryProfile:
        profiles.append(memory.measure(*arguments))
        return profiles[-1]

    started, scale = time.perf_counter(), scale_of(shape)
    config = _config(size, shape, folder, scale, eagle=eagle)
    with mock.patch.object(sizes, "measure", noting):
        engine = build.build_engine(config, _end)
    row = {"start_s": round(time.perf_counter() - started, 1)}
    for profile in profiles[:1]:
        alone = dataclasses.replace(profile, foreign=CONTEXT_BYTES)
        num_bytes = cache_bytes_per_token(shape) / size
        row["kv_tokens"] = int(alone.cache_bytes(UTILIZATION) / num_bytes)
    return row, lambda name: measure(engine, name, scale)


def _config(size: int, shape: str, folder: Path, scale: Scale, *, eagle: bool) -> Any:
    from benchmarks.bench_speculation import drafters
    from engine import config as parts

    rows = EAGLE_ROWS if eagle else scale.rows
    num_tokens = rows * scale.max_model_len if eagle else scale.cache_tokens
    return parts.EngineConfig(
        model=parts.ModelConfig(
            model=str(folder / "target"),
            dtype="float32" if shape == TINY else "bfloat16",
            load_format="dummy",
            max_model_len=scale.max_model_len,
        ),
        # Others hold memory of the same GPU: the blocks are given, and may take what is left.
        cache=parts.CacheConfig(
            num_blocks=num_tokens // 16 + 2, memory_utilization=0.97, prefix_caching=False
        ),
        scheduler=parts.SchedulerConfig(max_rows=rows, max_step_tokens=scale.step_tokens),
        sampling=parts.SamplingConfig(flashinfer="never"),  # it draws no rows of several ranks
        speculation=drafters(shape, folder / f"heads-{size}")["eagle"] if eagle else None,
        tensor_parallel_size=size,
    )


def _end(reason: str) -> None:
    """End an engine that lost a rank."""
    print(reason, file=sys.stderr, flush=True)
    os._exit(4)


def measure(engine: Any, name: str, scale: Scale) -> Reply:
    """The figures of one workload; `engine` is an `engine.engine.Engine`."""
    if name == "eagle":
        return _eagle(engine)
    if name == "single":
        workload_pass(engine, name, scale, seed=0)  # the first pass of all warms up
    return workload_pass(engine, name, scale, seed=1)


def _eagle(engine: Any) -> Reply:
    """Milliseconds a token of one stream whose drafts are accepted at a synthetic rate."""
    from benchmarks.bench_speculation import random_prompts, time_a_token
    from sampling.params import SamplingParams

    times = [time_a_token(engine, random_prompts(1), SamplingParams()) for _ in range(2)]
    drafts = engine.stats().drafts
    length = 1 + drafts.num_accepted / max(drafts.num_drafts, 1)
    return {"ms_a_token": round(times[1], 3), "tokens_a_step": round(length, 2)}


def workload_pass(engine: Any, name: str, scale: Scale, seed: int) -> Reply:
    """One pass of a workload: its tokens a second, and the milliseconds of its full steps.

    A step's time is that of the wall between two steps in which all rows run.
    """
    from benchmarks.bench_engine import _request
    from server.bench.workloads import make_workload

    full = 1 if name == "single" else scale.rows
    lengths = scale.lengths
    if lengths is not None and full == 1:
        lengths = dataclasses.replace(lengths, size=1)
    bodies = make_workload(name, engine.info.vocab_size, seed, lengths)
    for handle, body in enumerate(bodies):
        engine.submit(b"", _request(handle, body))
    started = before = time.perf_counter()
    num_tokens, periods = 0, []
    while engine.has_work:
        outputs = engine.step()
        now = time.perf_counter()
        num_tokens += sum(int(output.num_new.sum()) for _, output in outputs)
        if engine.stats().num_running == full:
            periods.append(1e3 * (now - before))
        before = now
    seconds = time.perf_counter() - started
    return {
        "s": round(seconds, 3),
        "tokens_per_s": round(num_tokens / seconds, 1),
        "step_ms": round(statistics.median(periods), 3) if periods else 0.0,
    }


def compare(engines: dict[str, Contender], sizes: list[int], figures: list[Figure]) -> None:
    """Let engines that are ready measure each figure in turn; prints all as it comes."""
    for figure in figures:
        first: float | None = None
        for size in sizes:
            name = name_of(size, eagle=figure.workload == "eagle")
            if name not in engines:
                continue
            engines[name].ask(figure.workload)
            reply = attempt(partial(engines[name].reply, figure.within_s))
            if reply is None:
                del engines[name]
                continue
            show({"workload": figure.workload, "ranks": size, **reply})
            if size == sizes[0]:
                first = reply[figure.key]
            else:
                show(_judged(figure, size, reply[figure.key], first))


def _judged(figure: Figure, size: int, value: float, first: float | None) -> Reply:
    """A figure over the first size's, and what it must be."""
    row: Reply = {"workload": figure.workload, "ranks": size, "of": figure.key}
    row["ratio"] = round(value / first, 3) if first else None
    if size == 2:
        row["must be ms" if figure.workload == "eagle" else "must be"] = figure.must
    return row


def name_of(size: int, *, eagle: bool) -> str:
    """The name of an engine."""
    return f"{size} ranks with a head" if eagle else f"{size} ranks"


def main() -> None:
    """Start all engines, then let them measure in turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", default=BIG, choices=(*SHAPES, TINY))
    parser.add_argument("--sizes", default="1,2")
    parser.add_argument("--figures", default=",".join(each.workload for each in FIGURES))
    parser.add_argument("--start", type=float, default=120.0, help="seconds for all to be ready")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds in all")
    parser.add_argument("--folder", type=Path, help="of the shape: be an engine of one size")
    parser.add_argument("--eagle", action="store_true", help="with a head")
    asked = parser.parse_args()
    if asked.folder:
        size = int(asked.sizes)
        contend(lambda: prepare(size, asked.shape, asked.folder, eagle=asked.eagle))
    figures = [each for each in FIGURES if each.workload in asked.figures.split(",")]
    sizes = [int(size) for size in asked.sizes.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        write_shape(asked.shape, Path(folder) / "target")
        engines = _begin(asked.shape, sizes, figures, folder)
        timer = threading.Timer(asked.limit, _give_up, (engines, asked.limit))
        timer.daemon = True
        timer.start()
        try:
            there = ready(list(engines.values()), asked.start)
            _tell_caches(there, sizes)
            compare({name: engines[name] for name in there}, sizes, figures)
        finally:
            for engine in engines.values():
                engine.end()


def _begin(
    shape: str, sizes: list[int], figures: list[Figure], folder: str
) -> dict[str, Contender]:
    """Start the engines that the figures need."""
    engines = {}
    for eagle in sorted({figure.workload == "eagle" for figure in figures}):
        for size in sizes:
            name, words = name_of(size, eagle=eagle), [MODULE, "--shape", shape]
            words += ["--sizes", str(size), "--folder", folder, *["--eagle"] * eagle]
            apart = eagle and size == 1 and max(sizes) > 1  # there are others on the first GPU
            environment = {"CUDA_VISIBLE_DEVICES": _second_gpu()} if apart else {}
            engines[name] = Contender(name, words, environment)
    return engines


def _second_gpu() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")[1]


def _tell_caches(there: dict[str, Reply], sizes: list[int]) -> None:
    """How many times the tokens of the first size a KV cache would hold."""
    tokens = [there.get(name_of(size, eagle=False), {}).get("kv_tokens") for size in sizes]
    for size, count in zip(sizes[1:], tokens[1:], strict=True):
        if count and tokens[0]:
            show({"ranks": size, "kv_tokens_ratio": round(count / tokens[0], 3)})


def _give_up(engines: dict[str, Contender], limit_s: float) -> None:
    show({"ended": f"after {limit_s:.0f} s"})
    for engine in engines.values():
        engine.end()
    os._exit(1)


if __name__ == "__main__":
    main()
