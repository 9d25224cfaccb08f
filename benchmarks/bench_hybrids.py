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
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.bench_speculation import DEVICE, free_memory
from benchmarks.figures import PRODUCT_TFLOPS
from benchmarks.hybrid_shapes import HYBRIDS, write_hybrid_shape
from benchmarks.shapes import SHAPES, write_shape
from engine.arrays import Int32Array
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.contracts.model import CausalLM
from engine.engine import Engine
from engine.memory.states import bytes_per_slot
from engine.models.loader import load_model
from engine.request import Request
from engine.speculative_config import SpeculativeConfig
from engine.startup.build import assemble
from sampling.params import SamplingParams

PROMPT, CACHED, TAIL, BATCH_PROMPTS = 512, 8000, 64, 16
CONTEXT, NEW, SETTLED = 128, 96, 16
"""Tokens of a prompt that decodes, tokens that follow, and those of them that are not timed."""
MAX_LEN, ROWS = CACHED + 1024, (256, 128, 64, 32, 16, 8, 2)
NUM_DRAFTS, LENGTH = 3, 2.5
BLOCK, SNAPSHOTS = 16, 16
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


def row(name: str, value: float, bound: float, unit: str) -> Row:
    """A measurement beside its bound."""
    return {
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
        yield row(
            f"decode, {batch} rows, {rate / 1e9:.0f} GB/s", ms, 1e3 * moved / rate, "ms a step"
        )
    tokens = BATCH_PROMPTS * PROMPT
    seconds = min(seconds_to_first(engine, prompts_of(BATCH_PROMPTS, PROMPT, n)) for n in (1, 2, 3))
    bound = 2 * model.num_weights * tokens / (PRODUCT_TFLOPS * 1e12)
    yield row(f"prefill, {BATCH_PROMPTS} x {PROMPT}", 1e3 * seconds, 1e3 * bound, "ms")
    yield hit_row(engine)
    states = (count + 1 + SNAPSHOTS) * sizes.state
    kept = sizes.loaded + num_tokens * sizes.token + states
    used = torch.cuda.mem_get_info()[1] - free_bytes() if DEVICE.type == "cuda" else kept
    yield row("memory", used / 1e9, kept / 1e9, "GB")
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
    return row(f"first token, {CACHED} cached and {TAIL} more", hit, tail_alone, "ms")


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
    yield row(f"one stream, {LENGTH} tokens a step", drafted, plain, "ms a token")


def write(shape: str, folder: Path, num_layers: int | None) -> Row:
    """Write a shape's folder; its config."""
    if shape in HYBRIDS:
        write_hybrid_shape(shape, folder, num_layers)
    else:
        write_shape(shape, folder)
    config: Row = json.loads((folder / "config.json").read_text())
    return config


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", default="lfm2-8b-a1b", choices=HYBRIDS | SHAPES)
    parser.add_argument("--quantization", choices=["fp8"])
    parser.add_argument("--layers", type=int, help="run the first layers alone")
    parser.add_argument("--rows", type=int, default=ROWS[0], help="the most rows that decode")
    parser.add_argument("--parts", default="plain,drafts")
    args = parser.parse_args()
    started, rows = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        written = write(args.shape, Path(folder), args.layers)
        config = ModelConfig(
            model=folder,
            max_model_len=MAX_LEN,
            load_format="dummy",
            quantization=args.quantization,
        )
        before = free_bytes()
        model = load_model(config, DEVICE)
        free_memory()
        sizes = Sizes.of(model, before - free_bytes(), written, fp8=args.quantization == "fp8")
        print(f"loaded in {time.perf_counter() - started:.0f} s: {sizes}", flush=True)
        measurements = {
            "plain": plain_rows(model, config, sizes, args.rows),
            "drafts": draft_rows(model, config) if args.shape.startswith("qwen3.6") else (),
        }
        for part in args.parts.split(","):
            for measured in measurements[part]:
                print(args.shape, measured, flush=True)
                rows.append(measured)
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
    print(json.dumps({"device": name, "rows": rows}))


if __name__ == "__main__":
    main()
