"""The engine without HTTP: a step's GPU time, its wall time, tokens a second, beside transformers.

    python -m benchmarks.bench_engine --shape qwen3-0.6b --workloads single,greedy,mixed

Engine and transformers run the same random weights. The greedy tokens of a run are compared with
those of the engine without graphs, and with transformers' logits: bfloat16 rounds differently in
other kernels, so a token counts as transformers' own where its logit is within `MARGIN` of the
highest. The engine without graphs may draw other tokens only where the library's products of the
shape round by the number of rows, to which a graph pads. Prints a line a measurement; the last line
is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.bench_sampling import copy_gb_per_s
from benchmarks.peer import ModuleWeights, agreement, peer_step_ms, random_module
from benchmarks.shapes import SHAPES, cache_bytes_per_token, shape_config, weight_bytes, write_shape
from engine.arrays import Int32Array, Int64Array
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.contracts.control import MemoryPart
from engine.contracts.model import CausalLM
from engine.contracts.runner import RouteArrays, StartingRunner, StepHandle
from engine.contracts.scoring import ScoringHandle, ScoringPlan
from engine.contracts.weights import AnyWeightCommand, WeightReply
from engine.engine import Engine
from engine.messages.request import Request
from engine.models.decoder import Decoder
from engine.models.families.table import decoder_spec
from engine.models.formats.reader import WeightReader
from engine.plan import StepPlan
from engine.runner.graphs.piecewise_graphs import token_ladder
from engine.startup.build import assemble
from sampling.params import SamplingParams
from server.bench.workloads import Body, make_workload

MARGIN = 0.25
"""A gap to the highest logit in standard deviations of the logits; the highest of 151936 logits is
about 4.4 above a random one."""
PREFILL_TOKENS = 1 << 16
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

Tokens = dict[int, list[int]]
Row = dict[str, Any]


@dataclass
class Step:
    """One step: its plan, and the events before and after it on the GPU."""

    plan: StepPlan
    before: torch.cuda.Event
    after: torch.cuda.Event

    @property
    def gpu_ms(self) -> float:
        """Milliseconds from its launch, or from the end of the step before if later, to its end."""
        return float(self.before.elapsed_time(self.after))


class TimedRunner:
    """A runner that notes the GPU time of its steps."""

    def __init__(self, runner: StartingRunner) -> None:
        self._runner = runner
        self.steps: list[Step] = []

    @property
    def rows_by_path(self) -> dict[str, int]:
        return self._runner.rows_by_path

    def launch(self, plan: StepPlan) -> StepHandle:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        handle = self._runner.launch(plan)
        after.record()
        self.steps.append(Step(plan, before, after))
        return handle

    def launch_scoring(self, plan: ScoringPlan) -> ScoringHandle:
        return self._runner.launch_scoring(plan)

    def read_routes(self, slots: Int64Array) -> RouteArrays:
        return self._runner.read_routes(slots)

    def weights(self, command: AnyWeightCommand) -> WeightReply:
        return self._runner.weights(command)

    def give_back(self, parts: Sequence[MemoryPart], *, keeps_weights: bool) -> None:
        self._runner.give_back(parts, keeps_weights=keeps_weights)

    def take_again(self, parts: Sequence[MemoryPart]) -> None:
        self._runner.take_again(parts)

    def forget(self, rows: Int32Array) -> None:
        self._runner.forget(rows)
        self.steps.clear()


def timed_engine(config: EngineConfig, model: CausalLM) -> tuple[Engine, TimedRunner]:
    """An engine around a loaded model, and its runner, which notes the times of its steps."""
    runners: list[TimedRunner] = []

    def wrap(runner: StartingRunner) -> StartingRunner:
        runners.append(TimedRunner(runner))
        return runners[0]

    return assemble(config, model, DEVICE, wrap).engine(), runners[0]


class Bench:
    """One shape's transformers model, and engines over the same weights."""

    def __init__(self, shape: str, folder: Path) -> None:
        self.shape = shape
        self.vocab_size: int = shape_config(shape)["vocab_size"]
        self._folder = str(write_shape(shape, folder))
        torch.manual_seed(0)
        self.peer = random_module(self._folder, DEVICE)
        reader = WeightReader.of(ModuleWeights(self.peer), torch.bfloat16, DEVICE)
        self._model = Decoder(decoder_spec(self.peer.config), reader, 8192)

    def engine(
        self, *, cuda_graphs: bool = True, num_blocks: int = 20_000
    ) -> tuple[Engine, TimedRunner]:
        """An engine and its runner, which notes the times of its steps."""
        config = EngineConfig(
            model=ModelConfig(model=self._folder, dtype="bfloat16", max_model_len=4096),
            cache=CacheConfig(num_blocks=num_blocks),
            scheduler=SchedulerConfig(max_rows=256, max_step_tokens=8192),
            cuda_graphs=cuda_graphs,
            wait_for_kernels=True,
        )
        return timed_engine(config, self._model)


def run(engine: Engine, bodies: list[Body]) -> tuple[Tokens, float]:
    """Run all bodies to their end: their tokens, and the seconds it took."""
    tokens: Tokens = defaultdict(list)
    started = time.perf_counter()
    for handle, body in enumerate(bodies):
        engine.submit(b"", _request(handle, body))
    while engine.has_work:
        for _, output in engine.step():
            if output.errors:
                raise RuntimeError(str(output.errors))
            handles = np.repeat(output.handles, output.num_new)
            for handle, token in zip(handles.tolist(), output.token_ids.tolist(), strict=True):
                tokens[handle].append(token)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return tokens, time.perf_counter() - started


def _request(handle: int, body: Body) -> Request:
    names = ("temperature", "top_k", "top_p", "seed", "logprobs")
    params = SamplingParams(**{name: body[name] for name in names if name in body})
    return Request(
        handle=handle,
        prompt_token_ids=np.array(body["prompt"], dtype=np.int32),
        params=params,
        max_tokens=body["max_tokens"],
        emit_interval=16,
    )


def measure(engine: Engine, timed: TimedRunner, name: str, repeat: int, shape: str) -> Row:
    """The best of some passes of a workload, each on fresh prompts."""
    passes, vocab_size = [], shape_config(shape)["vocab_size"]
    for attempt in range(repeat + 1):  # the first warms up
        bodies = make_workload(name, vocab_size, attempt)
        timed.steps.clear()
        tokens, seconds = run(engine, bodies)
        if attempt:
            passes.append(_row(tokens, seconds, timed.steps))
    return max(passes, key=lambda row: row["tokens_per_s"])


def _row(tokens: Tokens, seconds: float, steps: list[Step]) -> Row:
    widest = max(len(step.plan.rows) for step in steps)
    full = [s for s in steps if s.plan.is_decode and len(s.plan.rows) == widest]
    gpu_ms = statistics.median(step.gpu_ms for step in full)
    period_ms = full[0].after.elapsed_time(full[-1].after) / (len(full) - 1)
    return {
        "tokens_per_s": round(sum(len(ids) for ids in tokens.values()) / seconds, 1),
        "seconds": round(seconds, 3),
        "steps": len(steps),
        "rows": widest,
        "decode_gpu_ms": round(gpu_ms, 3),
        "decode_period_ms": round(period_ms, 3),
        "wall_over_gpu": round(period_ms / gpu_ms, 3),
        "context": int(np.mean([(s.plan.starts + 1).mean() for s in full])),
    }


def prefill(engine: Engine, timed: TimedRunner, shape: str) -> Row:
    """64k tokens in prompts of 512, one token out of each; the share of the GPU's product rate."""
    rng, best = np.random.default_rng(0), 1e9
    vocab_size = shape_config(shape)["vocab_size"]
    for _ in range(3):
        prompts = rng.integers(1000, vocab_size - 1000, (PREFILL_TOKENS // 512, 512)).tolist()
        timed.steps.clear()
        run(engine, [{"prompt": p, "max_tokens": 1, "temperature": 0.0} for p in prompts])
        best = min(best, sum(step.gpu_ms for step in timed.steps))
    layers = weight_bytes(shape) / 2 - shape_config(shape)["hidden_size"] * vocab_size
    tera = 2 * layers * PREFILL_TOKENS / 1e12
    return {"prefill_gpu_ms": round(best, 2), "prefill_tflops": round(tera / best * 1e3, 1)}


def check(bench: Bench, engine: Engine) -> Row:
    """Greedy tokens with graphs, without, and beside transformers' logits."""
    bodies = make_workload("greedy", bench.vocab_size, seed=99)
    captured, _ = run(engine, bodies)
    eager, _ = run(bench.engine(cuda_graphs=False, num_blocks=8_000)[0], bodies)
    differing = sum(captured[i] != eager[i] for i in range(len(bodies)))
    row = agreement(bench.peer, bodies[:8], captured)
    row["requests_that_differ_from_eager"] = differing
    row["sums_depend_on_rows"] = depends = sums_depend_on_rows(bench.shape)
    if depends:
        row["worst_gap"] = max(
            row["worst_gap"], agreement(bench.peer, bodies[:8], eager)["worst_gap"]
        )
    row["passed"] = (depends or differing == 0) and row["worst_gap"] <= MARGIN
    return row


@torch.inference_mode()
def sums_depend_on_rows(shape: str) -> bool:
    """Whether a library's product of the shape has other bits where more rows are beside its own.

    As a step is padded by graphs, from one row more than the captured number below.
    """
    config = shape_config(shape)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q_width, kv_width = (
        config[f"num_{name}_heads"] * config["head_dim"] for name in ("attention", "key_value")
    )
    products = [(hidden, q_width + 2 * kv_width), (q_width, hidden), (hidden, 2 * inner)]
    sizes = token_ladder(4096)
    for inputs, outputs in (*products, (inner, hidden)):
        x, weight = (
            torch.randn((count, inputs), dtype=torch.bfloat16, device=DEVICE)
            for count in (sizes[-1], outputs)
        )
        for below, size in itertools.pairwise(sizes):
            alone, padded = (F.linear(x[:count], weight) for count in (below + 1, size))
            if not torch.equal(alone, padded[: below + 1]):
                return True
    return False


def bound_ms(shape: str, rows: int, context: int, gb_per_s: float) -> float:
    """Milliseconds that reading the weights and every row's keys and values once takes."""
    num_bytes = weight_bytes(shape) + rows * context * cache_bytes_per_token(shape)
    return round(num_bytes / gb_per_s / 1e6, 3)


def measurements(shape: str, workloads: list[str], repeat: int) -> Iterator[tuple[str, Row]]:
    """All measurements of one shape, by name."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(shape, Path(folder))
        gb_per_s = round(copy_gb_per_s(), 1)
        yield "copy", {"gb_per_s": gb_per_s}
        started = time.perf_counter()
        engine, timed = bench.engine()
        yield "build", {"seconds": round(time.perf_counter() - started, 2)}
        yield "check", check(bench, engine)
        yield "prefill", prefill(engine, timed, shape)
        for name in workloads:
            row = measure(engine, timed, name, repeat, shape)
            row["bound_ms"] = bound_ms(shape, row["rows"], row["context"], gb_per_s)
            row["peer_step_ms"] = peer_step_ms(bench.peer, row["rows"], row["context"])
            yield name, row


def main() -> None:
    """Run the workloads asked for and print what came of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--workloads", default="single,greedy,mixed")
    parser.add_argument("--repeat", type=int, default=2)
    args = parser.parse_args()
    results: Row = {"shape": args.shape, "gpu": torch.cuda.get_device_name()}
    for name, row in measurements(args.shape, args.workloads.split(","), args.repeat):
        results[name] = row
        print(name, row, flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
