"""What the statement of error adds to a start: loading with its second reading, and the comparison.

    python -m benchmarks.bench_error --shape qwen3-8b

Random weights in float8 (`--quantization fp8`), a cache in float8. Prints the statement and
seconds; the last line is JSON. `over_weights_gb` is what loading held at most beyond the weights
that stay.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.shapes import BIG, EXPERTS, SHAPES, write_shape
from engine.config import CacheConfig, EngineConfig, ModelConfig, StructuredConfig
from engine.contracts.model import CausalLM
from engine.models.loader import load_model
from engine.startup.error_statement import ErrorMeasure
from engine.startup.kv_scales import kv_scales
from engine.structured.tokenizer import TokenizerReader

COMMAND = "python -m benchmarks.bench_error"
DEVICE = torch.device("cuda")
CONTEXT, BLOCK_SIZE = 4096, 16

Row = dict[str, Any]


def load(config: EngineConfig, measure: ErrorMeasure | None) -> tuple[CausalLM, Row]:
    """Load a model, with a reference beside it or without."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    began, before = time.perf_counter(), torch.cuda.memory_allocated()
    reference = None if measure is None else measure.reference
    model = load_model(config.model, DEVICE, reference=reference)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    weights = torch.cuda.memory_allocated() - before
    over = torch.cuda.max_memory_allocated() - before - weights
    return model, {
        "load_s": round(seconds, 2),
        "weights_gb": round(weights / 1e9, 2),
        "over_weights_gb": round(over / 1e9, 2),
    }


def measured(folder: str) -> Row:
    """The seconds of each part, and the statement."""
    config = EngineConfig(
        model=ModelConfig(
            model=folder, load_format="dummy", quantization="fp8", max_model_len=CONTEXT
        ),
        cache=CacheConfig(dtype="fp8"),
    )
    row: Row = {}
    for name in ("first", "without"):  # the first compiles kernels
        model, row[name] = load(config, None)
        del model
    measure = ErrorMeasure(config, TokenizerReader(StructuredConfig(tokenizer=folder)))
    model, row["with"] = load(config, measure)
    scales = kv_scales(model, DEVICE, BLOCK_SIZE, CONTEXT)
    torch.cuda.synchronize()
    began = time.perf_counter()
    print(measure.statement(model, DEVICE, scales), flush=True)
    row["compare_s"] = round(time.perf_counter() - began, 2)
    added = row["with"]["load_s"] - row["without"]["load_s"] + row["compare_s"]
    return row | {"added_s": round(added, 2)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=[*SHAPES, *EXPERTS], default=BIG)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = measured(str(write_shape(args.shape, Path(folder))))
    print(json.dumps({"command": f"{COMMAND} --shape {args.shape}", **row}))


if __name__ == "__main__":
    main()
