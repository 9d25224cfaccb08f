"""The sampler on one GPU, in CUDA graphs, beside torch, FlashInfer and one read of the logits.

    python -m benchmarks.bench_sampling

Prints a line a case and last a JSON line {"gpu", "copy_gb_per_s", "figures": [...]}; a figure is
{name, value, unit, sense, must, bound, command, check}. The bound is the time one read of the
logits takes at the bandwidth of a large copy, measured in the same run. The check compares tokens
with those of the sampler in plain torch on the CPU, which the tests compare with the float64
reference; beside it stand what torch and FlashInfer take, and the memory of a draw.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sampling.batch import SamplingBatch
from sampling.params import SamplingParams
from sampling.paths import flashinfer, torch_path, triton_path
from sampling.rows import SamplingRows

COMMAND = "python -m benchmarks.bench_sampling"
DEVICE = torch.device("cuda")
CHECKED_ROWS = 16
HISTORY = 64
DEMO = Path(__file__).parent.parent / "demo" / "model"


class Case(NamedTuple):
    """One measured draw."""

    name: str
    num_rows: int
    vocab_size: int
    params: SamplingParams
    must: float | None  # times the bound, or µs for a lone row
    logits: Callable[[int, int], Tensor]
    dtype: torch.dtype = torch.float32


def spread(num_rows: int, vocab_size: int) -> Tensor:
    """Normal logits of standard deviation 3."""
    return torch.randn(num_rows, vocab_size, device=DEVICE).mul_(3.0)


def flat(num_rows: int, vocab_size: int) -> Tensor:
    """Equal logits."""
    return torch.zeros(num_rows, vocab_size, device=DEVICE)


def model_like(num_rows: int, vocab_size: int) -> Tensor:
    """The demo model's logits on the text of this file; beyond its vocabulary, the same again
    in another order and 15 lower."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).to(DEVICE)
    ids = torch.tensor(tokenizer(Path(__file__).read_text())["input_ids"], device=DEVICE)[:1024]
    with torch.inference_mode():
        own = model(ids[None]).logits[0]
    own = own[torch.arange(num_rows, device=DEVICE) % len(own)]
    tail = own[:, torch.randint(0, own.shape[1], (vocab_size - own.shape[1],), device=DEVICE)]
    return torch.cat((own, tail - 15.0), dim=1)[:, torch.randperm(vocab_size, device=DEVICE)]


NEUTRAL = SamplingParams(temperature=0.8, seed=1)
K, P = SamplingParams(top_k=50, seed=1), SamplingParams(top_p=0.95, seed=1)
REPORTED = SamplingParams(
    temperature=0.8, seed=1, logprobs=20, logprob_token_ids=tuple(range(0, 1280, 10))
)
KPM = SamplingParams(top_k=50, top_p=0.95, min_p=0.02, seed=1)
BIG, WIDE = (1024, 128256), (256, 151936)
CASES = [
    Case("race, 1024x128256", *BIG, NEUTRAL, 1.25, spread),
    Case("race, 256x151936", *WIDE, NEUTRAL, 1.5, spread),
    Case("race, bf16 1024x128256", *BIG, NEUTRAL, 1.8, spread, torch.bfloat16),
    Case("race, 1x151936", 1, 151936, NEUTRAL, 20.0, spread),
    Case("race, chosen, rank, top-20, 128 ids, 1024x128256", *BIG, REPORTED, 3.0, spread),
    Case("top-k 50, top-p 0.95, min-p, 1024x128256", *BIG, KPM, 3.5, spread),
    Case("top-k 50, top-p 0.95, min-p, 256x151936", *WIDE, KPM, 3.5, spread),
    *(
        Case(f"{name} alone, {source.__name__} logits, 1024x128256", *BIG, params, 4.0, source)
        for name, params in (("top-k 50", K), ("top-p 0.95", P))
        for source in (spread, flat, model_like)
    ),
]
PENALIZED = SamplingParams(temperature=0.8, seed=1, frequency_penalty=0.5, repetition_penalty=1.1)


def make_batch(
    num_rows: int, vocab_size: int, params: SamplingParams, device: torch.device
) -> tuple[SamplingBatch, SamplingRows]:
    """A batch of requests, each with its own seed and a history."""
    generator = torch.Generator().manual_seed(vocab_size)
    history = torch.randint(
        0, vocab_size, (num_rows, HISTORY), dtype=torch.int32, generator=generator
    )
    rows = SamplingRows(num_rows, vocab_size, device, history=history.to(device))
    for row in range(num_rows):
        rows.add(row, params, seed=row * 7919, choice=0, prompt_len=8, num_tokens=HISTORY)
    rows.flush()
    rows_np = np.arange(num_rows, dtype=np.int32)
    batch = SamplingBatch(
        rows=torch.arange(num_rows, dtype=torch.int32, device=device),
        positions=torch.full((num_rows,), HISTORY, device=device),
        rows_np=rows_np,
        needs=rows.needs(rows_np),
    )
    return batch, rows


def graph_us(call: Callable[[], Any], repeat: int = 50) -> float:
    """Median time of a replayed CUDA graph of the call."""
    for _ in range(2):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return timed_us(graph.replay, repeat)


def timed_us(call: Callable[[], Any], repeat: int = 50) -> float:
    """Median device time of a call."""
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        for _ in range(repeat)
    ]
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return float(np.median([start.elapsed_time(end) for start, end in events])) * 1e3


def copy_gb_per_s() -> float:
    """Bandwidth of a large copy, bytes read plus bytes written."""
    source = torch.randn(1 << 29, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.nbytes / timed_us(lambda: target.copy_(source), 20) / 1e3


def extra_bytes(call: Callable[[], Any]) -> int:
    """Peak memory a call takes beyond what was allocated before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


def mismatches(logits: Tensor, params: SamplingParams) -> int:
    """Tokens of the first rows that differ from the sampler's in plain torch."""
    some = logits[:CHECKED_ROWS]
    batch, rows = make_batch(len(some), logits.shape[1], params, DEVICE)
    ours = triton_path.draw(some, batch, rows).token_ids.cpu()
    batch, rows = make_batch(len(some), logits.shape[1], params, torch.device("cpu"))
    return int((ours != torch_path.draw(some.cpu(), batch, rows).token_ids).sum())


def torch_race(logits: Tensor) -> Tensor:
    """Draw by an exponential race in float32, as one writes it in torch."""
    probabilities = torch.softmax(logits, dim=-1, dtype=torch.float32)
    return probabilities.div_(torch.empty_like(probabilities).exponential_()).argmax(-1)


def flashinfer_us(logits: Tensor, params: SamplingParams) -> float | None:
    """FlashInfer's sampler alone, on float32 logits, without temperature and min-p."""
    if flashinfer.obstacle(DEVICE) is not None or logits.dtype != torch.float32:
        return None
    from flashinfer import sampling

    n, vocab_size = logits.shape
    if params.top_k == 0 and params.top_p == 1.0:
        return timed_us(partial(sampling.sampling_from_logits, logits))
    top_k = torch.full((n,), params.top_k or vocab_size, dtype=torch.int32, device=DEVICE)
    top_p = torch.full((n,), params.top_p, device=DEVICE)
    return timed_us(
        partial(sampling.top_k_top_p_sampling_from_logits, logits, top_k, top_p), repeat=20
    )


def measured(case: Case, gb_per_s: float) -> Iterator[dict[str, Any]]:
    """The figure of a case; prints the others beside it."""
    torch.manual_seed(0)
    logits = case.logits(case.num_rows, case.vocab_size).to(case.dtype)
    bound = logits.nbytes / gb_per_s / 1e3
    batch, rows = make_batch(case.num_rows, case.vocab_size, case.params, DEVICE)
    draw = partial(triton_path.draw, logits, batch, rows)
    value = graph_us(draw)
    peers = {
        "torch's race": graph_us(partial(torch_race, logits)),
        "FlashInfer": flashinfer_us(logits, case.params),
    }
    beside = ", ".join(f"{name} {us:.1f} µs" for name, us in peers.items() if us is not None)
    megabytes = f"{extra_bytes(draw) / 1e6:.1f} MB beside the logits' {logits.nbytes / 1e6:.1f}"
    wrong = mismatches(logits, case.params)
    print(f"{case.name}: {value:.1f} µs, {value / bound:.2f} reads; {beside}", flush=True)
    must = case.must if case.num_rows == 1 or case.must is None else case.must * bound
    check = f"{wrong} of {CHECKED_ROWS} tokens differ; {beside}; {megabytes}"
    yield timed_figure(f"sampling: {case.name}", value, must, bound, check)


def penalties(gb_per_s: float) -> Iterator[dict[str, Any]]:
    """The figure of penalties on every row: the time they add to the race."""
    logits = spread(*WIDE)
    bound = logits.nbytes / gb_per_s / 1e3
    times = []
    for params in (NEUTRAL, PENALIZED):
        batch, rows = make_batch(*WIDE, params, DEVICE)
        times.append(graph_us(partial(triton_path.draw, logits, batch, rows)))
    extra = times[1] - times[0]
    print(f"penalties: {times[1]:.1f} µs, without {times[0]:.1f} µs", flush=True)
    wrong = mismatches(logits, PENALIZED)
    name = "sampling: penalties on every row, extra, 256x151936"
    yield timed_figure(name, extra, 2 * bound, bound, f"{wrong} of {CHECKED_ROWS} tokens differ")


def timed_figure(
    name: str, value: float, must: float | None, bound: float, check: str, command: str = COMMAND
) -> dict[str, Any]:
    """One figure in microseconds; `must` None only records it."""
    return {
        "name": name,
        "value": round(value, 1),
        "unit": "µs",
        "sense": "<=",
        "must": None if must is None else round(must, 1),
        "bound": round(bound, 1),
        "command": command,
        "check": check,
    }


def figures() -> Iterator[dict[str, Any]]:
    """All figures, in one run."""
    gb_per_s = copy_gb_per_s()
    print(f"copy {gb_per_s:.0f} GB/s", flush=True)
    for case in CASES:
        yield from measured(case, gb_per_s)
        torch.cuda.empty_cache()
    yield from penalties(gb_per_s)


def main() -> None:
    """Measure, and say whether every figure is what it must be."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print_all(figures())


def print_all(figures: Iterator[dict[str, Any]]) -> None:
    """Print the figures that are not what they must be, and last all of them as a JSON line."""
    made = list(figures)
    failed = [each["name"] for each in made if each["must"] and each["value"] > each["must"]]
    print("over what they must be:", failed or "none")
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "figures": made}))


if __name__ == "__main__":
    main()
