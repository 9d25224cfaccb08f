"""The demo model without drafts, with its EAGLE head, and with suffixes: time a token, CPU or GPU.

    python -m benchmarks.bench_demo --batches 1,8,32

Prompts are this project's own sources, which the model was not trained on; those of the figures are
an agent's, who repeats what its tools returned. Prints a line a measurement; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer

from benchmarks.bench_speculation import DEVICE, MAX_LEN, engine_of, free_memory, time_a_token
from benchmarks.figures import Figure, figure
from demo import EAGLE_FOLDER, MODEL_FOLDER
from engine.arrays import Int32Array
from engine.config import ModelConfig
from engine.models.loader import load_model
from engine.speculative_config import SpeculativeConfig
from sampling.params import SamplingParams

NUM_DRAFTS, PROMPT_TOKENS, STREAMS = 4, 256, 8
NAMES = ("report.txt", "notes.md", "main.py", "table.csv", "Makefile")
SUFFIX = SpeculativeConfig(method="suffix", num_speculative_tokens=8)
SOURCES = Path(__file__).parent.parent / "engine"
KINDS: tuple[tuple[str, float, Literal["greedy", "gumbel"]], ...] = (
    ("T = 0", 0.0, "greedy"),
    ("T = 1", 1.0, "gumbel"),
)
"""The two ways of drawing: a name, the temperature, how drafts are drawn."""


def source_prompts(count: int) -> list[Int32Array]:
    """`count` prompts, the beginnings of pieces of this project's source text."""
    tokenizer = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
    text = "".join(path.read_text() for path in sorted(SOURCES.glob("*.py")))
    ids = np.array(tokenizer.encode(text).ids, dtype=np.int32)
    starts = np.linspace(0, len(ids) - PROMPT_TOKENS, count).astype(int)
    return [ids[start : start + PROMPT_TOKENS] for start in starts]


def traces(count: int) -> list[Int32Array]:
    """`count` prompts in which records of tools come again and again."""
    tokenizer = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
    drawn, prompts = random.Random(0), []
    for _ in range(count):
        records = [
            json.dumps(
                {"id": drawn.randrange(1000), "name": drawn.choice(NAMES), "size": drawn.random()}
            )
            for _ in range(2)
        ]
        ids = np.array(tokenizer.encode("\n".join(records * 8)).ids, dtype=np.int32)
        prompts.append(ids[:PROMPT_TOKENS])
    return prompts


def figures() -> Iterator[Figure]:
    """Suffix drafts over none of streams that repeat themselves."""
    config = ModelConfig(model=str(MODEL_FOLDER), max_model_len=MAX_LEN)
    model, times = load_model(config, DEVICE), []
    for speculation in (None, SUFFIX):
        engine = engine_of(model, config, speculation, STREAMS)
        greedy = SamplingParams(temperature=0.0)
        times.append(min(time_a_token(engine, traces(STREAMS), greedy) for _ in range(3)))
        print(speculation and speculation.method, times[-1], engine.stats().drafts, flush=True)
        del engine
        free_memory()
    what = f"demo model, {STREAMS} streams that repeat themselves, suffixes: times faster"
    made = figure(what, round(times[0] / times[1], 3), "ratio", ">=", 1.6, None, 2.5)
    yield made | {"command": "python -m benchmarks.record --parts drafts", "check": ""}


def measurements(batches: list[int]) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind, batch and drafter; plain decoding comes first."""
    config = ModelConfig(model=str(MODEL_FOLDER), max_model_len=MAX_LEN)
    model = load_model(config, DEVICE)
    for kind, temperature, sample_method in KINDS:
        eagle = SpeculativeConfig(
            method="eagle",
            model=str(EAGLE_FOLDER),
            num_speculative_tokens=NUM_DRAFTS,
            draft_sample_method=sample_method,
        )
        for speculation in (None, eagle, SUFFIX):
            engine = engine_of(model, config, speculation, max(batches))
            for batch in batches:
                prompts = source_prompts(batch)
                params = SamplingParams(temperature=temperature)
                per_token = min(time_a_token(engine, prompts, params) for _ in range(3))
                stats = engine.stats().drafts
                row = {
                    "kind": kind,
                    "drafter": "none" if speculation is None else speculation.method,
                    "batch": batch,
                    "tokens_per_s": round(1000.0 * batch / per_token, 1),
                }
                if stats is not None:
                    row["accepted_a_step"] = round(stats.num_accepted / stats.num_drafts, 2)
                yield row
            del engine
            free_memory()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", default="1,8,32")
    args = parser.parse_args()
    rows = []
    for row in measurements([int(batch) for batch in args.batches.split(",")]):
        print(row, flush=True)
        rows.append(row)
    print(json.dumps({"device": str(DEVICE), "rows": rows}))


if __name__ == "__main__":
    main()
