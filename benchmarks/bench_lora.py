"""Decode steps of rows with adapters over those without, in one server with random weights.

    python -m benchmarks.bench_lora --shape qwen3-0.6b --rows 256 --adapters 8

A line each: steps of rows without adapters, of rows that take the adapters in turn, of half of
each, and of a lone row without and with one; then the time that a load takes from disk to the first
token. Ratios are of tokens a second over the base's. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks.shapes import SHAPES, write_shape
from engine.config import (
    AdaptersConfig,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from engine.contracts.adapters import AdapterSource
from engine.engine import Engine
from engine.request import Request
from engine.startup.build import build_engine
from sampling.params import SamplingParams

PROMPT, WARM = 64, 8
PRODUCTS = {
    "self_attn.q_proj": ("hidden", "queries"),
    "self_attn.k_proj": ("hidden", "keys"),
    "self_attn.v_proj": ("hidden", "keys"),
    "self_attn.o_proj": ("queries", "hidden"),
    "mlp.gate_proj": ("hidden", "inner"),
    "mlp.up_proj": ("hidden", "inner"),
    "mlp.down_proj": ("inner", "hidden"),
}


def write_random_adapter(folder: Path, config: dict[str, Any], rank: int) -> None:
    """Write an adapter of all products but experts' in bfloat16, as PEFT does."""
    has_experts = bool(config.get("num_experts") or config.get("num_local_experts"))
    sizes = {
        "hidden": config["hidden_size"],
        "inner": config["intermediate_size"],
        "queries": config["num_attention_heads"] * config["head_dim"],
        "keys": config["num_key_value_heads"] * config["head_dim"],
    }
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (inputs, outputs) in PRODUCTS.items():
            if has_experts and name.startswith("mlp."):
                continue
            module = f"base_model.model.model.layers.{layer}.{name}"
            a = torch.randn((rank, sizes[inputs]), dtype=torch.bfloat16) * 0.01
            b = torch.randn((sizes[outputs], rank), dtype=torch.bfloat16) * 0.01
            tensors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(fields))


def engine_of(
    folder: Path, adapter: Path, max_rows: int, num_adapters: int, rank: int, *, all_modules: bool
) -> Engine:
    """An engine with an adapter under many names, all in slots at once."""
    names = tuple((f"a{index}", str(adapter)) for index in range(num_adapters))
    targets = None if all_modules else tuple(PRODUCTS)
    return build_engine(
        EngineConfig(
            model=ModelConfig(model=str(folder), load_format="dummy", max_model_len=1024),
            cache=CacheConfig(num_blocks=max_rows * 16 + 2),
            scheduler=SchedulerConfig(max_rows=max_rows),
            adapters=AdaptersConfig(
                max_loras=num_adapters, max_rank=rank, modules=names, target_modules=targets
            ),
        )
    )


def submit(engine: Engine, adapters: list[str], num_tokens: int) -> None:
    """Submit a request for each name, empty for the base."""
    for handle, adapter in enumerate(adapters):
        drawn = np.random.default_rng(handle).integers(2, 30_000, PROMPT)
        engine.submit(
            b"",
            Request(
                handle=handle,
                prompt_token_ids=drawn.astype(np.int32),
                params=SamplingParams(temperature=1.0, seed=handle),
                max_tokens=num_tokens,
                adapter=adapter,
                emit_interval=32,
            ),
        )


def step_ms(engine: Engine, adapters: list[str], num_steps: int) -> float:
    """Milliseconds of a step in which every row decodes."""
    submit(engine, adapters, WARM + num_steps + 16)
    began = engine.stats().num_steps
    while len(adapters) > engine.stats().num_running or engine.stats().num_steps < began + WARM:
        engine.step()
    started, first = time.perf_counter(), engine.stats().num_steps
    for _ in range(num_steps):
        engine.step()
    taken = time.perf_counter() - started
    counted = engine.stats().num_steps - first
    while engine.has_work:
        engine.step()
    return 1e3 * taken / counted


def first_token_s(engine: Engine, adapter: Path) -> float:
    """Seconds from the beginning of a load to the first token drawn with what was loaded."""
    assert engine.adapters is not None
    started = time.perf_counter()
    source = AdapterSource(str(adapter))
    engine.adapters.load("loaded", source, replaces=True, done=lambda error: None)
    while engine.adapters.readings:
        engine.step()
    submit(engine, ["loaded"], 1)
    while engine.has_work:
        engine.step()
    return time.perf_counter() - started


def measure(engine: Engine, adapter: Path, rows: int, num_adapters: int, steps: int) -> list[Any]:
    """All figures of an engine, printed as they come."""
    taken = [f"a{index % num_adapters}" for index in range(rows)]
    cases = {
        "base": [""] * rows,
        "all adapted": taken,
        "half adapted": [name if i % 2 else "" for i, name in enumerate(taken)],
        "lone base": [""],
        "lone adapted": ["a0"],
    }
    times: dict[str, float] = {}
    figures: list[Any] = []
    for name, adapters in cases.items():
        times[name] = min(step_ms(engine, adapters, steps) for _ in range(2))
        base = times["lone base" if name.startswith("lone") else "base"]
        figures.append({"name": name, "ms": times[name], "ratio": base / times[name]})
        print(f"{name:14} {times[name]:7.3f} ms a step   {base / times[name]:.3f}", flush=True)
    seconds = min(first_token_s(engine, adapter) for _ in range(3))
    print(f"a load to the first token: {seconds:.3f} s", flush=True)
    return [*figures, {"name": "load", "s": seconds}]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--all-modules",
        action="store_true",
        help="slots have room for embeddings and head too, which the adapter leaves alone",
    )
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as made:
        folder, adapter = Path(made) / "model", Path(made) / "adapter"
        write_shape(asked.shape, folder)
        config = json.loads((folder / "config.json").read_text())
        write_random_adapter(adapter, config, asked.rank)
        engine = engine_of(
            folder,
            adapter,
            asked.rows,
            asked.adapters,
            asked.rank,
            all_modules=asked.all_modules,
        )
        figures = measure(engine, adapter, asked.rows, asked.adapters, asked.steps)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    print(json.dumps({"device": device, **vars(asked), "figures": figures}))


if __name__ == "__main__":
    main()
