"""The demo model without drafts, with its EAGLE head, and with suffixes: time a token, CPU or GPU.

    python -m benchmarks.bench_demo --batches 1,8,32

Prompts are this project's own sources, which the model was not trained on. Prints a line a
measurement; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer

from benchmarks.bench_speculation import DEVICE, MAX_LEN, engine_of, free_memory, time_a_token
from demo import EAGLE_FOLDER, MODEL_FOLDER
from engine.arrays import Int32Array
from engine.config import ModelConfig
from engine.models.loader import load_model
from engine.speculative_config import SpeculativeConfig
from sampling.params import SamplingParams

NUM_DRAFTS, PROMPT_TOKENS = 4, 256
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
