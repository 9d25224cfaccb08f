"""The engine over shapes of models whose layers keep states, with random weights.

    python -m benchmarks.bench_hybrids --shape qwen3.6-27b --quantization fp8

A line each for one stream, as many rows as fit up to 256, prompts of 512, drafts of the model's own
head (three, 2.5 tokens a step by synthetic acceptance), and a prompt whose 8,000 tokens are
cached. Each is beside its bound on this GPU: the bytes that a step must move over the rate of a
copy, products at 790 TFLOP/s, or the tail alone. The last line is JSON.
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
from msgspec.structs import replace

from benchmarks.bench_speculation import DEVICE, free_memory, time_a_token
from benchmarks.figures import PRODUCT_TFLOPS
from benchmarks.hybrid_shapes import HYBRIDS, write_hybrid_shape
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
MAX_LEN, ROWS = 1024, (256, 128, 64, 32, 16, 8, 2)
NUM_DRAFTS, LENGTH = 3, 2.5
BLOCK, SNAPSHOTS = 16, 16
Row = dict[str, Any]


class Sizes(NamedTuple):
    """Bytes of a loaded model.

    Attributes:
        weights: of all that a full step reads. active: of what one token reads.
        state: of a row. token: of a token's keys and values.
    """

    weights: int
    active: int
    state: int
    token: int

    @classmethod
    def of(cls, model: CausalLM, allocated: int, *, tied: bool, fp8: bool) -> Sizes:
        """The sizes of a model that took `allocated` bytes of the GPU."""
        head = 2 * model.vocab_size * model.hidden_size
        weights = allocated - (0 if tied else head)
        active = model.num_weights * (1 if fp8 else 2) + head
        state = bytes_per_slot(model.state_specs(0))
        specs = model.attention_specs
        return cls(weights, active, state, sum(4 * s.num_kv_heads * s.head_dim for s in specs))


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
    max_len: int,
    num_tokens: int,
    speculation: SpeculativeConfig | None = None,
) -> Engine:
    """An engine with room for `num_tokens` of keys and values."""
    engine_config = EngineConfig(
        model=replace(config, max_model_len=max_len),
        cache=CacheConfig(num_blocks=num_tokens // BLOCK + 2, num_snapshots=SNAPSHOTS),
        scheduler=SchedulerConfig(max_rows=max_rows, max_step_tokens=8192),
        speculation=speculation,
    )
    return assemble(engine_config, model, DEVICE).engine()


def prompts_of(count: int, length: int, seed: int) -> list[Int32Array]:
    """Random prompts."""
    drawn = np.random.default_rng(seed).integers(2, 30_000, (count, length))
    return list(drawn.astype(np.int32))


def seconds_to_first(engine: Engine, prompts: list[Int32Array]) -> float:
    """Seconds until every prompt has its one token."""
    _wait()
    started = time.perf_counter()
    for handle, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0.0)
        engine.submit(
            b"", Request(handle=handle, prompt_token_ids=prompt, params=params, max_tokens=1)
        )
    while engine.has_work:
        engine.step()
    return time.perf_counter() - started


def row(name: str, value: float, bound: float, unit: str) -> Row:
    """A measurement beside its bound."""
    return {
        "name": name,
        "value": round(value, 4),
        "bound": round(bound, 4),
        "unit": unit,
        "ratio": round(value / bound, 3),
    }


def decode_rows(
    model: CausalLM, config: ModelConfig, sizes: Sizes, rate: float, most: int
) -> Iterator[Row]:
    """One stream, and as many rows as fit, `most` at most."""
    free = 0.8 * free_bytes() - (2 << 30)
    per_row = sizes.state + MAX_LEN * sizes.token
    count = next(n for n in ROWS if n <= most and n * per_row + SNAPSHOTS * sizes.state < free)
    engine = engine_of(model, config, count, MAX_LEN, count * MAX_LEN)
    for batch in (1, count):
        prompts = prompts_of(batch, PROMPT, batch)
        time_a_token(engine, prompts, SamplingParams())
        ms = time_a_token(engine, prompts, SamplingParams())
        keys = batch * sizes.token * (PROMPT + 120)
        moved = (sizes.active if batch == 1 else sizes.weights) + 2 * batch * sizes.state + keys
        yield row(f"decode, {batch} rows", ms, 1e3 * moved / rate, "ms a step")
    del engine
    free_memory()


def prefill_rows(model: CausalLM, config: ModelConfig, sizes: Sizes) -> Iterator[Row]:
    """Prompts of 512, and one whose beginning is cached."""
    engine = engine_of(model, config, BATCH_PROMPTS, CACHED + 1024, 4 * (CACHED + 1024))
    tokens = BATCH_PROMPTS * PROMPT
    for seed in (1, 2, 3):
        seconds = seconds_to_first(engine, prompts_of(BATCH_PROMPTS, PROMPT, seed))
    bound = 2 * model.num_weights * tokens / (PRODUCT_TFLOPS * 1e12)
    yield row(f"prefill, {BATCH_PROMPTS} x {PROMPT}", 1e3 * seconds, 1e3 * bound, "ms")
    beginning = prompts_of(1, CACHED, 9)[0]
    seconds_to_first(engine, [np.append(beginning, prompts_of(1, TAIL, 10)[0])])
    hits, alone = [], []
    for seed in range(11, 16):
        tail = prompts_of(1, TAIL, seed)[0]
        hits.append(seconds_to_first(engine, [np.append(beginning, tail)]))
        alone.append(seconds_to_first(engine, [tail[::-1].copy()]))
    hit, tail_alone = 1e3 * float(np.median(hits)), 1e3 * float(np.median(alone))
    yield row(f"first token, {CACHED} cached and {TAIL} more", hit, tail_alone, "ms")
    del engine
    free_memory()


def draft_rows(model: CausalLM, config: ModelConfig) -> Iterator[Row]:
    """One stream with and without the checkpoint's own head."""
    speculation = SpeculativeConfig(
        method="mtp",
        num_speculative_tokens=NUM_DRAFTS,
        rejection_sample_method="synthetic",
        synthetic_acceptance_length=LENGTH,
    )
    times = []
    for own in (None, speculation):
        engine = engine_of(model, config, 4, MAX_LEN, 4 * MAX_LEN, own)
        prompts = prompts_of(1, PROMPT, 3)
        time_a_token(engine, prompts, SamplingParams())
        times.append(time_a_token(engine, prompts, SamplingParams()))
        del engine
        free_memory()
    yield row(f"one stream, {LENGTH} tokens a step", times[1], times[0], "ms a token")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", default="lfm2-8b-a1b", choices=HYBRIDS)
    parser.add_argument("--quantization", choices=["fp8"])
    parser.add_argument("--layers", type=int, help="run the first layers alone")
    parser.add_argument("--rows", type=int, default=ROWS[0], help="the most rows that decode")
    parser.add_argument("--parts", default="decode,prefill,drafts")
    args = parser.parse_args()
    rate, rows = copy_rate(), []
    free_memory()
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(write_hybrid_shape(args.shape, Path(temporary), args.layers))
        config = ModelConfig(
            model=folder,
            max_model_len=CACHED + 1024,
            load_format="dummy",
            quantization=args.quantization,
        )
        before = free_bytes()
        model = load_model(config, DEVICE)
        tied = HYBRIDS[args.shape]["tie_word_embeddings"]
        free_memory()
        allocated = before - free_bytes()
        sizes = Sizes.of(model, allocated, tied=tied, fp8=args.quantization == "fp8")
        measurements = {
            "decode": decode_rows(model, config, sizes, rate, args.rows),
            "prefill": prefill_rows(model, config, sizes),
            "drafts": draft_rows(model, config) if args.shape.startswith("qwen") else (),
        }
        for part in args.parts.split(","):
            for measured in measurements[part]:
                print(args.shape, measured, flush=True)
                rows.append(measured)
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
    print(json.dumps({"device": name, "copy GB/s": round(rate / 1e9), "rows": rows}))


if __name__ == "__main__":
    main()
