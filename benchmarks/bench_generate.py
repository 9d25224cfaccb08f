"""The engine beside transformers' generate on the CPU, in one process: CPU and wall time a token.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_generate --passes 10

Both take the demo model in float32 with as many threads, and the same greedy requests of 64 tokens
in and 64 out: 32 at once beside one batch of 32, and one after another. Passes alternate, each on
fresh prompts, and the best of each counts, so that a machine that others use too may be asked; CPU
time is of all threads. HTTP is left out: `bench_serving` has it. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.bench_speculation import engine_of
from benchmarks.peer import batch_generate
from demo import MODEL_FOLDER
from engine.config import ModelConfig
from engine.engine import Engine
from engine.messages.request import Request
from engine.models.loader import load_model
from engine.process import SWITCH_S
from sampling.params import SamplingParams
from server.bench.workloads import Body, make_workload
from server.generation.prepare import NON_STREAM_INTERVAL

BATCH, ALONE, VOCAB_SIZE = 32, 2, 8192
"""Requests at once, requests one after another, and ids that prompts are made of."""

Generate = Callable[[list[Body]], None]


def engine_generate() -> Generate:
    """The function that runs requests together through the engine."""
    config = ModelConfig(model=str(MODEL_FOLDER), device="cpu")
    model = load_model(config, torch.device("cpu"))
    engine: Engine = engine_of(model, config, None, BATCH)

    def run(bodies: list[Body]) -> None:
        for handle, body in enumerate(bodies):
            request = Request(
                handle=handle,
                prompt_token_ids=np.array(body["prompt"], dtype=np.int32),
                params=SamplingParams(temperature=0.0),
                max_tokens=body["max_tokens"],
                emit_interval=NON_STREAM_INTERVAL,
            )
            engine.submit(b"", request)
        while engine.has_work:
            engine.step()

    return run


def timed(run: Generate, batches: list[list[Body]]) -> tuple[float, float]:
    """Milliseconds of CPU and of wall time a token drawn."""
    cpu, wall = time.process_time(), time.perf_counter()
    for bodies in batches:
        run(bodies)
    num_tokens = sum(body["max_tokens"] for bodies in batches for body in bodies)
    spent = time.process_time() - cpu, time.perf_counter() - wall
    return 1e3 * spent[0] / num_tokens, 1e3 * spent[1] / num_tokens


def main() -> None:
    """Print what each takes and how many times ours the other's is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--passes", type=int, default=10)
    args = parser.parse_args()
    sys.setswitchinterval(SWITCH_S)  # as the engine's process does
    generate = batch_generate(str(MODEL_FOLDER), torch.device("cpu"), torch.float32)
    sides = {"engine": engine_generate(), "generate": generate}
    gc.collect()
    gc.freeze()  # as the engine's process does; a collection would walk through all of transformers
    taken: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for attempt in range(args.passes + 1):
        bodies = make_workload("chat", VOCAB_SIZE, attempt)
        cases = {"together": [bodies], "one by one": [[body] for body in bodies[:ALONE]]}
        for case, batches in cases.items():
            for side, run in sides.items():
                times = timed(run, batches)
                if attempt:  # the first pass warms up
                    taken.setdefault((case, side), []).append(times)
    result: dict[str, Any] = {"threads": torch.get_num_threads()}
    for case in ("together", "one by one"):
        for i, kind in enumerate(("cpu", "wall")):
            best = {side: min(times[i] for times in taken[case, side]) for side in sides}
            ratio = best["generate"] / best["engine"]
            result[f"{case}, {kind}"] = {
                **{s: round(b, 3) for s, b in best.items()},
                "ratio": round(ratio, 2),
            }
            print(case, kind, result[f"{case}, {kind}"], flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
