"""Decode steps of rows with adapters over those of an engine without, with random weights.

    python -m benchmarks.bench_lora --shape qwen3-0.6b --rows 256 --adapters 8

A line each: steps of an engine that takes no adapters, all rows and a lone one; of one that does,
rows without adapters, rows that take them in turn, half of each, a lone row without and with one;
then the time that a load takes from disk to the first token. Ratios are of tokens a second over the
engine without adapters. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks.bench_speculation import free_memory
from benchmarks.figures import Figure, figure
from benchmarks.shapes import BIG, SHAPES, TINY, write_shape
from engine.config import (
    AdaptersConfig,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from engine.contracts.adapters import AdapterSource
from engine.engine import Engine
from engine.messages.request import Request
from engine.startup.build import build_engine
from sampling.params import SamplingParams

SMALL = "qwen3-0.6b"
PROMPT, WARM = 64, 8
MANY, LOAD_S = 50, 0.3
RATIOS = {
    **{"base": (0.99, None), "all adapted": (0.90, 0.96), "half adapted": (None, None)},
    **{"lone base": (0.99, None), "lone adapted": (0.90, 0.95)},
}
"""What rates over those of an engine without adapters must be, and ought to."""
Row = dict[str, Any]
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


class Sizes(NamedTuple):
    """What is measured.

    Attributes:
        rows: of a step. adapters: that its rows take in turn, of one rank. steps: that are timed.
        all_modules: slots have room for embeddings and head too, which the adapter leaves alone.
    """

    rows: int = 256
    adapters: int = 8
    rank: int = 16
    steps: int = 60
    all_modules: bool = False


def engine_of(folder: Path, adapter: Path, sizes: Sizes) -> Engine:
    """An engine with an adapter under many names, all in slots at once, or without any."""
    names = tuple((f"a{index}", str(adapter)) for index in range(sizes.adapters))
    targets = None if sizes.all_modules else tuple(PRODUCTS)
    adapters = AdaptersConfig(
        max_loras=sizes.adapters, max_rank=sizes.rank, modules=names, target_modules=targets
    )
    return build_engine(
        EngineConfig(
            model=ModelConfig(model=str(folder), load_format="dummy", max_model_len=1024),
            cache=CacheConfig(num_blocks=sizes.rows * 16 + 2),
            scheduler=SchedulerConfig(max_rows=sizes.rows),
            adapters=adapters if names else None,
            wait_for_kernels=True,
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
    while readings := engine.adapters.readings:
        wait(readings)  # as an engine's loop does, which leaves the interpreter to them
        engine.step()
    submit(engine, ["loaded"], 1)
    while engine.has_work:
        engine.step()
    return time.perf_counter() - started


def measure(folder: Path, adapter: Path, sizes: Sizes) -> Iterator[Row]:
    """A row a case of an engine without adapters and of one with them, and that of a load."""
    taken = [f"a{index % sizes.adapters}" for index in range(sizes.rows)]
    half = [name if i % 2 else "" for i, name in enumerate(taken)]
    none = [""] * sizes.rows
    without = {"alone": none, "lone alone": [""]}
    cases = {"base": none, "all adapted": taken, "half adapted": half}
    cases |= {"lone base": [""], "lone adapted": ["a0"]}
    times: dict[str, float] = {}
    for asked, engine_sizes in ((without, sizes._replace(adapters=0)), (cases, sizes)):
        engine = engine_of(folder, adapter, engine_sizes)
        for name, adapters in asked.items():
            times[name] = min(step_ms(engine, adapters, sizes.steps) for _ in range(2))
            alone = times["lone alone" if name.startswith("lone") else "alone"]
            yield {"name": name, "ms": times[name], "ratio": round(alone / times[name], 4)}
        if engine.adapters is not None:
            yield {"name": "load", "s": min(first_token_s(engine, adapter) for _ in range(3))}
        del engine
        free_memory()


def measurements(shape: str, sizes: Sizes) -> Iterator[Row]:
    """The rows of a shape, printed as they come."""
    with tempfile.TemporaryDirectory() as made:
        folder, adapter = Path(made) / "model", Path(made) / "adapter"
        write_shape(shape, folder)
        write_random_adapter(adapter, json.loads((folder / "config.json").read_text()), sizes.rank)
        for row in measure(folder, adapter, sizes):
            print(shape, row, flush=True)
            yield row


def figures(shape: str) -> Iterator[Figure]:
    """The figures of a shape with 8 adapters of rank 16, and of the small one with 100."""
    sizes = [Sizes(rows=4, adapters=2, rank=4, steps=4)] if shape == TINY else [Sizes()]
    if shape == SMALL:
        sizes.append(Sizes(adapters=100))
    for each in sizes:
        for row in measurements(shape, each):
            words = f"python -m benchmarks.bench_lora --shape {shape} --adapters {each.adapters}"
            made_by = {"command": words, "check": "tests/engine/adapters compare with PEFT"}
            if (made := _figure_of(shape, each.adapters, row)) is not None:
                yield made | made_by


def _figure_of(shape: str, num_adapters: int, row: Row) -> Figure | None:
    name, many = row["name"], num_adapters > MANY
    if name == "load":
        most = LOAD_S if shape == BIG else None
        what = f"{shape}, an adapter's load to its first token"
        return None if many else figure(what, round(row["s"], 3), "s", "<=", most, None)
    if name not in RATIOS or (many and name != "all adapted"):
        return None
    must, aim = (0.80, None) if many else RATIOS[name]
    what = f"{shape}, {num_adapters} adapters, {name}: rate over none"
    return figure(what, row["ratio"], "ratio", ">=", must, 1.0, aim)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=[*SHAPES, TINY], default=SMALL)
    for name, value in Sizes._field_defaults.items():
        if name != "all_modules":
            parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--all-modules", action="store_true", help="slots have room for all")
    asked = vars(parser.parse_args(arguments))
    rows = list(measurements(asked.pop("shape"), Sizes(**asked)))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    print(json.dumps({"device": device, **asked, "rows": rows}))


if __name__ == "__main__":
    main()
