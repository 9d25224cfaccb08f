"""How long a checkpoint takes to load, as it is and quantised, and the memory that loading takes.

    python -m benchmarks.bench_load --shape qwen3-8b --folder /tmp/qwen3-8b

Writes random bfloat16 weights of a shape to the folder first, where there are none. The files are
then in the page cache, so that a disk's speed is in no figure. Prints a JSON line a load: seconds,
GB of the weights as they stay, and the most that loading held beyond them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.shapes import EXPERTS, SHAPES, write_shape
from engine.config import ModelConfig
from engine.models.loader import load_model
from engine.models.reference import Reference
from engine.models.weights.folder import INDEX

DEVICE = torch.device("cuda")
SHARD_BYTES = 2 << 30
WRITERS = 4
GB = 1e9
Shapes = dict[str, torch.Size]


def shards(shapes: Shapes) -> Iterator[Shapes]:
    """Tensors of some two GB each."""
    shard: Shapes = {}
    for name, shape in shapes.items():
        shard[name] = shape
        if sum(2 * each.numel() for each in shard.values()) > SHARD_BYTES:
            yield shard
            shard = {}
    if shard:
        yield shard


def write_weights(folder: Path) -> None:
    """Write random weights of a folder's config."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    where: dict[str, str] = {}

    def write(index: int, shard: Shapes) -> None:
        tensors = {
            name: torch.empty(shape, dtype=torch.bfloat16, device=DEVICE).normal_(0, 0.02).cpu()
            for name, shape in shard.items()
        }
        save_file(tensors, folder / f"model-{index}.safetensors")

    with ThreadPoolExecutor(WRITERS) as pool:
        parts = list(shards(shapes))
        for index, shard in enumerate(parts):
            where |= dict.fromkeys(shard, f"model-{index}.safetensors")
        list(pool.map(write, range(len(parts)), parts))
    (folder / INDEX).write_text(json.dumps({"weight_map": where}))


def some_text(vocab_size: int) -> torch.Tensor:
    """Ids as long as the text of the statement of error."""
    return torch.arange(512) % vocab_size


def load(folder: Path, quantization: Literal["fp8"] | None, *, states_error: bool) -> None:
    """Load once and print what it took."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    config = ModelConfig(model=str(folder), dtype="bfloat16", quantization=quantization)
    reference = Reference(some_text) if states_error else None
    begin = time.perf_counter()
    model = load_model(config, DEVICE, reference=reference)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    stays = torch.cuda.memory_allocated()
    line = {
        "quantization": quantization,
        "states_error": states_error,
        "seconds": round(seconds, 2),
        "weights_gb": round(stays / GB, 2),
        "beyond_gb": round((torch.cuda.max_memory_allocated() - stays) / GB, 2),
    }
    print(json.dumps(line), flush=True)
    del model


def main() -> None:
    """Write the weights where there are none, and load them each way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=[*SHAPES, *EXPERTS], default="qwen3-8b")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--write-only", action="store_true")
    args = parser.parse_args()
    if not (args.folder / INDEX).exists():
        write_shape(args.shape, args.folder)
        begin = time.perf_counter()
        write_weights(args.folder)
        print("written in", round(time.perf_counter() - begin, 1), "s", flush=True)
    if args.write_only:
        return
    kinds: list[tuple[Literal["fp8"] | None, bool]] = [
        (None, False),
        (None, False),
        ("fp8", False),
        ("fp8", False),
        ("fp8", True),
    ]
    for quantization, states_error in kinds:
        load(args.folder, quantization, states_error=states_error)


if __name__ == "__main__":
    main()
