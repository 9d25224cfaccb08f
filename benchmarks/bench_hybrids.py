"""The engine over shapes of models whose layers keep states, with random weights.

    python -m benchmarks.bench_hybrids --shape qwen3.6-27b --quantization fp8

A line each for one stream, as many rows as fit up to 256, prompts of 512, a prompt whose 8,000
tokens are cached, the GPU's memory, and drafts of the model's own head (three, 2.5 tokens a step by
synthetic acceptance). Each is beside its bound on this GPU: the bytes that a step must move over
the rate of a copy, products at 790 TFLOP/s, the tail alone, or weights, keys and states. A dense
shape may be measured as well. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from benchmarks.bench_speculation import DEVICE, free_memory
from benchmarks.figures import PRODUCT_TFLOPS, Figure, figure
from benchmarks.hybrid_shapes import HYBRIDS, write_hybrid_shape
from benchmarks.shapes import LAYERS, SHAPES, write_shape
from engine.arrays import Int32Array
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.contracts.model import CausalLM
from engine.engine import Engine
from engine.memory.states import bytes_per_slot
from engine.messages.request import Request
from engine.models.loader import load_model
from engine.speculative_config import SpeculativeConfig
from engine.startup.build import assemble
from sampling.params import SamplingParams

PROMPT, CACHED, TAIL, BATCH_PROMPTS = 512, 8000, 64, 16
CONTEXT, NEW, SETTLED = 128, 96, 16
"""Tokens of a prompt that decodes, tokens that follow, and those of them that are not timed."""
MAX_LEN, ROWS = CACHED + 1024, (256, 128, 64, 32, 16, 8, 2)
NUM_DRAFTS, LENGTH = 3, 2.5
TRIAL = "qwen-tiny"
"""A shape that is tried out on a CPU."""
BLOCK, SNAPSHOTS = 16, 16
LIMITS: dict[str, tuple[str, float | None, float | None]] = {
    "lone": ("<=", 1.7, 1.35),
    "many": ("<=", 1.5, 1.25),
    "prefill": (">=", 0.45, 0.6),
    "hit": ("<=", 1.3, 1.1),
    "memory": ("<=", None, None),
    "drafts": (">=", 1.7, 2.1),
}
"""By kind, what the ratio to a bound must be, and ought to."""
WORDS = {
    **{"lone": "over its bytes", "many": "over its bytes", "prefill": "share of its products"},
    **{"hit": "over the tail's", "memory": "over weights, keys, states", "drafts": "times faster"},
}
Row = dict[str, Any]


class Sizes(NamedTuple):
    """Bytes of a loaded model.

    Attributes:
        loaded: of the GPU. weights: of those that a step of every expert reads.
        active: of those that a lone row reads. experts: of a layer's experts, all and a token's.
        state: of a row. token: of a token's keys and values.
    """

    loaded: int
    weights: int
    active: int
    experts: tuple[int, int]
    state: int
    token: int

    @classmethod
    def of(cls, model: CausalLM, loaded: int, config: Row, *, fp8: bool) -> Sizes:
        """The sizes of a model that took `loaded` bytes of the GPU."""
        head = 2 * model.vocab_size * model.hidden_size
        experts: int = config.get("num_experts") or config.get("n_routed_experts") or 1
        taken: int = config.get("num_experts_per_tok") or 1
        return cls(
            loaded=loaded,
            weights=loaded - (0 if config.get("tie_word_embeddings") else head),
            active=model.num_weights * (1 if fp8 else 2) + head,
            experts=(experts, taken),
            state=bytes_per_slot(model.state_specs(0)),
            token=sum(4 * s.num_kv_heads * s.head_dim for s in model.attention_specs),
        )

    def step(self, rows: int, context: int) -> float:
        """Those that a step moves: of experts, as many as rows that choose alike often meet."""
        count, taken = self.experts
        share = 1.0 - (1.0 - taken / count) ** rows
        alone = taken / count
        per_share = (self.weights - self.active) / max(1.0 - alone, 1e-9)
        weights = self.active + (share - alone) * per_share
        return weights + rows * (2 * self.state + context * self.token)


def copy_rate() -> float:
    """Bytes a second that a copy reads and writes."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    target.copy_(source)
    _wait()
    started = time.perf_counter()
    for _ in range(10):
        target.copy_(source)
    _wait()
    return 20 * len(source) / (time.perf_counter() - started)


def _wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def free_bytes() -> int:
    """Bytes that the device has left; on a CPU, where shapes are tried out, few."""
    return torch.cuda.mem_get_info()[0] if DEVICE.type == "cuda" else 1 << 32


def engine_of(
    model: CausalLM,
    config: ModelConfig,
    max_rows: int,
    num_tokens: int,
    speculation: SpeculativeConfig | None = None,
) -> Engine:
    """An engine with room for `num_tokens` of keys and values."""
    engine_config = EngineConfig(
        model=config,
        cache=CacheConfig(num_blocks=num_tokens // BLOCK + 2, num_snapshots=SNAPSHOTS),
        scheduler=SchedulerConfig(max_rows=max_rows, max_step_tokens=8192),
        speculation=speculation,
    )
    started = time.perf_counter()
    engine = assemble(engine_config, model, DEVICE).engine()
    print(f"engine of {max_rows} rows: {time.perf_counter() - started:.0f} s", flush=True)
    return engine


def prompts_of(count: int, length: int, seed: int) -> list[Int32Array]:
    """Random prompts."""
    drawn = np.random.default_rng(seed).integers(2, 30_000, (count, length))
    return list(drawn.astype(np.int32))


def submit(engine: Engine, prompts: list[Int32Array], num_tokens: int) -> None:
    """Ask for so many tokens after each prompt."""
    for handle, prompt in enumerate(prompts):
        request = Request(
            handle=handle, prompt_token_ids=prompt, params=SamplingParams(), max_tokens=num_tokens
        )
        engine.submit(b"", request)


def seconds_to_first(engine: Engine, prompts: list[Int32Array]) -> float:
    """Seconds until every prompt has its one token."""
    _wait()
    started = time.perf_counter()
    submit(engine, prompts, 1)
    while engine.has_work:
        engine.step()
    return time.perf_counter() - started


def time_a_token(engine: Engine, prompts: list[Int32Array]) -> float:
    """Milliseconds between two tokens of a row while the rows of all prompts decode."""
    submit(engine, prompts, NEW)
    num_new = np.zeros(len(prompts), dtype=np.int64)

    def step() -> None:
        for _, output in engine.step():
            np.add.at(num_new, output.handles, output.num_new)

    while num_new.min() < SETTLED:
        step()
    started, first = time.perf_counter(), int(num_new.sum())
    while num_new.max() < NEW:  # until the first ends all run
        step()
    elapsed, count = time.perf_counter() - started, int(num_new.sum()) - first
    while engine.has_work:
        engine.step()
    return 1000.0 * elapsed * len(prompts) / count


def row(kind: str, name: str, value: float, bound: float, unit: str) -> Row:
    """A measurement beside its bound."""
    return {
        "kind": kind,
        "name": name,
        "value": round(value, 4),
        "bound": round(bound, 4),
        "unit": unit,
        "ratio": round(value / bound, 3),
    }


def rows_that_fit(sizes: Sizes, most: int) -> int:
    """How many rows there is memory for, `most` at most."""
    free = 0.8 * free_bytes() - (2 << 30)
    per_row = sizes.state + (CONTEXT + NEW) * sizes.token
    shared = SNAPSHOTS * sizes.state + 2 * MAX_LEN * sizes.token
    return next(n for n in ROWS if n <= most and n * per_row + shared < free)


def plain_rows(model: CausalLM, config: ModelConfig, sizes: Sizes, most: int) -> Iterator[Row]:
    """One stream, many rows, prompts of 512, one whose beginning is cached, and memory."""
    rate, count = copy_rate(), rows_that_fit(sizes, most)
    free_memory()
    num_tokens = max(count * (CONTEXT + NEW), BATCH_PROMPTS * PROMPT) + 2 * MAX_LEN
    engine = engine_of(model, config, count, num_tokens)
    for batch in (1, count):
        prompts = prompts_of(batch, CONTEXT, batch)
        ms = min(time_a_token(engine, prompts) for _ in range(2))
        moved = sizes.step(batch, CONTEXT + NEW // 2)
        kind = "lone" if batch == 1 else "many"
        print(f"a copy moves {rate / 1e9:.0f} GB/s", flush=True)
        yield row(kind, f"decode, {batch} rows", ms, 1e3 * moved / rate, "ms a step")
    tokens = BATCH_PROMPTS * PROMPT
    seconds = min(seconds_to_first(engine, prompts_of(BATCH_PROMPTS, PROMPT, n)) for n in (1, 2, 3))
    bound = 2 * model.num_weights * tokens / (PRODUCT_TFLOPS * 1e12)
    what = f"prefill, {BATCH_PROMPTS} x {PROMPT}"
    yield row("prefill", what, 1e3 * seconds, 1e3 * bound, "ms")
    yield hit_row(engine)
    states = (count + 1 + SNAPSHOTS) * sizes.state
    kept = sizes.loaded + num_tokens * sizes.token + states
    used = torch.cuda.mem_get_info()[1] - free_bytes() if DEVICE.type == "cuda" else kept
    yield row("memory", "memory", used / 1e9, kept / 1e9, "GB")
    del engine
    free_memory()


def hit_row(engine: Engine) -> Row:
    """The first token after a prompt whose beginning is cached, and after its tail alone."""
    beginning = prompts_of(1, CACHED, 9)[0]
    seconds_to_first(engine, [np.append(beginning, prompts_of(1, TAIL, 10)[0])])
    hits, alone = [], []
    for seed in range(11, 18):
        tail = prompts_of(1, TAIL, seed)[0]
        hits.append(seconds_to_first(engine, [np.append(beginning, tail)]))
        alone.append(seconds_to_first(engine, [tail[::-1].copy()]))
    hit, tail_alone = 1e3 * float(np.median(hits)), 1e3 * float(np.median(alone))
    return row("hit", f"first token, {CACHED} cached and {TAIL} more", hit, tail_alone, "ms")


def draft_rows(model: CausalLM, config: ModelConfig) -> Iterator[Row]:
    """One stream with and without the checkpoint's own head."""
    speculation = SpeculativeConfig(
        method="mtp",
        num_speculative_tokens=NUM_DRAFTS,
        rejection_sample_method="synthetic",
        synthetic_acceptance_length=LENGTH,
    )
    times = []
    for own in (speculation, None):
        engine = engine_of(model, config, 1, 2 * MAX_LEN, own)
        prompts = prompts_of(1, CONTEXT, 3)
        times.append(min(time_a_token(engine, prompts) for _ in range(2)))
        del engine
        free_memory()
    drafted, plain = times
    yield row("drafts", f"one stream, {LENGTH} tokens a step", drafted, plain, "ms a token")


def write(shape: str, folder: Path, num_layers: int | None) -> Row:
    """Write a shape's folder; its config."""
    if shape in HYBRIDS:
        write_hybrid_shape(shape, folder, num_layers)
    else:
        write_shape(shape, folder)
    config: Row = json.loads((folder / "config.json").read_text())
    return config


def measurements(
    shape: str,
    quantization: Literal["fp8"] | None,
    num_layers: int | None,
    most: int,
    parts: list[str],
) -> Iterator[Row]:
    """The rows of a shape, printed as they come."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        written = write(shape, Path(folder), num_layers)
        config = ModelConfig(
            model=folder, max_model_len=MAX_LEN, load_format="dummy", quantization=quantization
        )
        before = free_bytes()
        model = load_model(config, DEVICE)
        free_memory()
        fp8 = quantization == "fp8"
        sizes = Sizes.of(model, before - free_bytes(), written, fp8=fp8)
        print(f"loaded in {time.perf_counter() - started:.0f} s: {sizes}", flush=True)
        own_head = shape.startswith("qwen")
        made = {
            "plain": plain_rows(model, config, sizes, most),
            "drafts": draft_rows(model, config) if own_head else iter(()),
        }
        for part in parts:
            for measured in made[part]:
                print(shape, measured, flush=True)
                yield measured


def figures(shape: str, quantization: Literal["fp8"] | None = None) -> Iterator[Figure]:
    """The figures of one shape."""
    words = f"python -m benchmarks.bench_hybrids --shape {shape}"
    words += f" --quantization {quantization}" if quantization else ""
    made_by = {"command": words, "check": "tests/engine/models/families/test_hybrids_cuda.py"}
    layers, most = LAYERS or None, 2 if shape == TRIAL else ROWS[0]
    name = f"{shape}{f' {quantization}' if quantization else ''}"
    for row in measurements(shape, quantization, layers, most, ["plain", "drafts"]):
        ratio, (sense, must, aim) = row["ratio"], LIMITS[row["kind"]]
        if sense == ">=":  # a bound over the time, as a share or as times faster
            ratio = round(1.0 / ratio, 3)
        what = f"{name}, {row['name']}: {WORDS[row['kind']]}"
        yield figure(what, ratio, "ratio", sense, must, None, aim) | made_by
        plain = f"{name}, {row['name']}"
        yield figure(plain, row["value"], row["unit"], "<=", None, row["bound"]) | made_by


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", default="lfm2-8b-a1b", choices=HYBRIDS | SHAPES)
    parser.add_argument("--quantization", choices=["fp8"])
    parser.add_argument("--layers", type=int, help="run the first layers alone")
    parser.add_argument("--rows", type=int, default=ROWS[0], help="the most rows that decode")
    parser.add_argument("--parts", default="plain,drafts")
    args = parser.parse_args()
    parts = args.parts.split(",")
    rows = list(measurements(args.shape, args.quantization, args.layers, args.rows, parts))
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
    print(json.dumps({"device": name, "rows": rows}))


if __name__ == "__main__":
    main()
