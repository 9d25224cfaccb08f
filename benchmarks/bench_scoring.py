"""Scoring beside a prefill of the same tokens, and what logprobs cost.

    python -m benchmarks.bench_scoring                          # the demo model on the CPU
    python -m benchmarks.bench_scoring --shape qwen3-0.6b       # random weights on the GPU

Without HTTP: one scoring request of many items that share a query, and prefills of as many tokens
as its items have. With HTTP: the same request, and separate requests of one label each; requests
with and without `logprobs=5` in turns. Every pass has fresh prompts; the best counts. Prints a
line a measurement; the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from benchmarks.bench_serving import load, serving
from benchmarks.bench_speculation import free_memory
from benchmarks.shapes import BIG, QWEN3, SHAPES, write_shape
from demo import MODEL_FOLDER
from engine.arrays import Int32Array
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.messages.request import Request, ScoringRequest
from engine.messages.step_output import Finish, ItemScores
from engine.startup.build import build_engine
from sampling.params import SamplingParams
from server.bench.workloads import Body, Lengths, make_workload

DEMO = "demo"
WORKLOADS = "gscore,score,score-prefix,logprobs"
REPEAT = 3
REQUEST_LEN = 200
"""Tokens of each prompt of the workload `score`."""


@dataclass(frozen=True)
class Sizes:
    """The amount of work: a GPU's, or what two CPU cores do in seconds."""

    vocab_size: int
    query_len: int
    num_items: int
    item_len: int
    prompt_len: int
    num_requests: int
    step_tokens: int
    num_choices: int
    generation: Body

    @property
    def item_tokens(self) -> int:
        return self.num_items * self.item_len


def sizes_of(shape: str) -> Sizes:
    """Full sizes on a GPU; a tenth of the items and requests on the demo model, and half
    the requests at 8B, where they take seconds."""
    if shape == DEMO:
        short = {"max_tokens": 64, "min_tokens": 64}
        return Sizes(8192, 1024, 200, 32, 200, 200, 2048, 32, short)
    num_requests = 1000 if shape == BIG else 2000
    return Sizes(QWEN3["vocab_size"], 1024, 2000, 32, 512, num_requests, 8192, 256, {})


def make_engine(model: str, sizes: Sizes) -> Engine:
    """An engine with random weights of a shape, or with the demo model."""
    return build_engine(
        EngineConfig(
            model=ModelConfig(
                model=model,
                load_format="auto" if model == str(MODEL_FOLDER) else "dummy",
                max_model_len=2048,
            ),
            cache=CacheConfig(memory_utilization=0.5),
            scheduler=SchedulerConfig(max_step_tokens=sizes.step_tokens),
            wait_for_kernels=True,
        )
    )


def prefill_s(engine: Engine, sizes: Sizes, prompt_len: int, seed: int) -> float:
    """Seconds for as many tokens as the items have, in prompts that share nothing."""
    rng = np.random.default_rng(seed)
    shape = (sizes.item_tokens // prompt_len, prompt_len)
    prompts = rng.integers(10, sizes.vocab_size - 10, shape).astype(np.int32)
    began = time.perf_counter()
    for handle, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0.0)
        engine.submit(
            b"", Request(handle=handle, prompt_token_ids=prompt, params=params, max_tokens=1)
        )
    while engine.has_work:
        engine.step()
    return time.perf_counter() - began


def request_of(
    handle: int, query: Int32Array, items: Int32Array, ids: Int32Array, *, num_read: int = 1
) -> ScoringRequest:
    """A request of items [N, L] after a query; no ids ask for hidden states."""
    count, length = items.shape
    return ScoringRequest(
        handle=handle,
        query_token_ids=query,
        item_token_ids=items.ravel(),
        item_lens=np.full(count, length, dtype=np.int32),
        num_read=np.full(count, num_read, dtype=np.int32),
        id_lists=ids[None],
        embeds=not len(ids),
    )


def scored_s(engine: Engine, requests: list[ScoringRequest]) -> tuple[float, int]:
    """Seconds and steps of requests at once."""
    ended: list[ItemScores] = []
    began, steps = time.perf_counter(), 0
    for request in requests:
        engine.score(b"", request)
    while engine.has_work:
        for _, output in engine.step():
            ended += output.item_scores
        steps += 1
    seconds = time.perf_counter() - began
    if [scores.finish for scores in ended] != [Finish.LENGTH] * len(requests):
        raise RuntimeError(f"a request failed: {ended}")
    return seconds, steps


def scoring_s(engine: Engine, sizes: Sizes, seed: int) -> float:
    """Seconds for one request of all items."""
    rng = np.random.default_rng(seed)
    query, items = (
        rng.integers(10, sizes.vocab_size - 10, shape).astype(np.int32)
        for shape in (sizes.query_len, (sizes.num_items, sizes.item_len))
    )
    labels = np.array([5000, 6000], dtype=np.int32)
    return scored_s(engine, [request_of(0, query, items, labels)])[0]


def without_http(model: str, sizes: Sizes) -> dict[str, float]:
    """Measure the engine alone."""
    engine = make_engine(model, sizes)
    found: dict[str, float] = {}
    for length in sorted({sizes.prompt_len, sizes.item_len, REQUEST_LEN}):
        times = [prefill_s(engine, sizes, length, i) for i in range(REPEAT + 1)]
        found[f"prefill_prompts_of_{length}_s"] = round(min(times), 4)
    found["scoring_s"] = round(min(scoring_s(engine, sizes, i) for i in range(REPEAT + 1)), 4)
    plain = found[f"prefill_prompts_of_{sizes.prompt_len}_s"]
    found["scoring_over_prefill"] = round(found["scoring_s"] / plain, 3)
    del engine
    free_memory()  # it is the server's now
    return found


async def gscore(url: str, sizes: Sizes, seed: int) -> float:
    """Seconds for one `/generative_scoring` request of all items."""
    rng = np.random.default_rng(100 + seed)

    def ids(*shape: int) -> Any:
        return rng.integers(10, sizes.vocab_size - 10, shape).tolist()

    body = {
        "query": ids(sizes.query_len),
        "items": ids(sizes.num_items, sizes.item_len),
        "label_token_ids": [5000, 6000],
    }
    timeout = aiohttp.ClientTimeout(total=900)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        began = time.perf_counter()
        async with session.post(f"{url}/generative_scoring", json=body) as reply:
            answer = await reply.json()
        seconds = time.perf_counter() - began
    if reply.status != 200 or len(answer["data"]) != sizes.num_items:
        raise RuntimeError(str(answer)[:300])
    return seconds


def separate(url: str, name: str, sizes: Sizes) -> float:
    """Requests a second of a workload of one label each."""
    passes = []
    for attempt in range(REPEAT):
        bodies = make_workload(name, sizes.vocab_size, attempt)[: sizes.num_requests]
        passes.append(asyncio.run(load(url, bodies, 1024))["requests_per_s"])
    return max(passes)


def logprobs_share(url: str, sizes: Sizes, extra: Body) -> dict[str, float]:
    """Throughput with `logprobs=5` over that without, in turns: the machine's moods hit both."""
    rates: dict[str, list[float]] = {"none": [], "logprobs": []}
    for attempt in range(REPEAT + 2):
        for name in rates:
            bodies = [
                body | sizes.generation | extra | ({"logprobs": 5} if name == "logprobs" else {})
                for body in make_workload(
                    "temp", sizes.vocab_size, attempt, Lengths(size=sizes.num_choices)
                )
            ]
            rates[name].append(asyncio.run(load(url, bodies, 1024))["output_tokens_per_s"])
    found = {name: max(values) for name, values in rates.items()}
    return {**found, "share": round(found["logprobs"] / found["none"], 3)}


def with_http(model: str, sizes: Sizes, workloads: list[str]) -> dict[str, Any]:
    """Measure the server over a socket."""
    flags = ["--max-num-batched-tokens", str(sizes.step_tokens)]
    flags += ["--disable-uvicorn-access-log"]
    if model != str(MODEL_FOLDER):
        flags += ["--load-format", "dummy"]
    found: dict[str, Any] = {}
    with serving(model, *flags) as url:
        for name in workloads:
            if name == "gscore":
                times = [asyncio.run(gscore(url, sizes, i)) for i in range(REPEAT + 1)]
                found["gscore_s"] = round(min(times), 4)
            elif name == "logprobs":
                found["logprobs, T 0.8"] = logprobs_share(url, sizes, {})
                found["logprobs, T 0.8, top-p 0.95"] = logprobs_share(url, sizes, {"top_p": 0.95})
            else:
                found[f"{name}_requests_per_s"] = separate(url, name, sizes)
            print(json.dumps(found), flush=True)
    return found


def measurements(shape: str, workloads: list[str], *, over_http: bool = True) -> dict[str, Any]:
    """All measurements of one shape, by name."""
    sizes = sizes_of(shape)
    with tempfile.TemporaryDirectory() as folder:
        model = str(MODEL_FOLDER)
        if shape != DEMO:
            model = str(write_shape(shape, Path(folder)))
        results: dict[str, Any] = {"shape": shape, **without_http(model, sizes)}
        print(json.dumps(results), flush=True)
        if over_http:
            results |= with_http(model, sizes, workloads)
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=[DEMO, *SHAPES], default=DEMO)
    parser.add_argument("--workloads", default=WORKLOADS)
    parser.add_argument("--no-http", action="store_true")
    args = parser.parse_args()
    workloads = args.workloads.split(",")
    print(json.dumps(measurements(args.shape, workloads, over_http=not args.no_http)))


if __name__ == "__main__":
    main()
