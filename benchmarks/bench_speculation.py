"""Time a token with and without speculation, on random weights and synthetic acceptance.

    python -m benchmarks.bench_speculation --shape qwen3-8b --batches 1,64

The target has the shape of a real model; the heads are one-layer EAGLE heads of its width, one
with the target's vocabulary and one, as EAGLE-3 heads have, with a reduced one, and a DFlash head
of the published shape. Drafts are accepted by the real kernel at rates that give `LENGTH` tokens a
step, `BLOCK_LENGTH` with blocks, or not at all. Prints a line a measurement; the last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.figures import Figure, figure
from benchmarks.shapes import SHAPES, TINY, shape_config, write_shape
from engine.arrays import Int32Array, Int64Array
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.contracts.model import CausalLM
from engine.engine import Engine
from engine.messages.request import Request
from engine.models.loader import load_model
from engine.speculative_config import SpeculativeConfig
from engine.startup.build import assemble
from sampling.params import SamplingParams

COMMAND = "python -m benchmarks.bench_speculation"
NUM_DRAFTS, LENGTH, DRAFT_VOCAB = 4, 3.0, 32_000
BLOCK_TOKENS, BLOCK_LAYERS, BLOCK_LENGTH = 16, 5, 6.3
PROMPT_TOKENS, NEW_TOKENS, MAX_LEN = 512, 240, 1024
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCHES = (1, 32, 64, 256)
MUSTS = {
    ("eagle", 1): 1.7,
    ("eagle, 32k", 1): 2.0,
    ("eagle", 64): 1.4,
    ("eagle, 32k", 64): 1.4,
    ("dflash", 1): 3.8,
    ("dflash", 32): 1.9,
} | {(name, 256): 0.99 for name in ("eagle", "eagle, 32k", "dflash")}
MUSTS |= {("eagle, refused", batch): 0.99 for batch in BATCHES}
"""The least factors by which tokens come faster; what does not pay may cost a hundredth."""
AIMS = {("dflash", 1): 4.76, ("dflash", 32): 2.38}
ALL_ASKED = SamplingParams(seed=1, min_p=0.05, logprobs=5)
ALL_ASKED_MUST, ALL_ASKED_ROWS = 0.97, 32
"""A block head's rate where every row asks for so much, over its rate where none does."""
HEAD = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}


def write_head(shape: str, folder: Path, **fields: int) -> Path:
    """Write the config of an EAGLE head as wide as a shape."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(shape_config(shape) | HEAD | fields))
    return folder


def write_block_head(shape: str, folder: Path) -> Path:
    """Write the config of a DFlash head, which reads layers spread over a shape's."""
    target, sizes = shape_config(shape), ("hidden_size", "intermediate_size", "vocab_size")
    num_layers: int = target["num_hidden_layers"]
    step = max(num_layers - 4, 0) / (BLOCK_LAYERS - 1)
    nested = {
        "mask_token_id": target["vocab_size"] - 1,
        "target_layer_ids": [min(1, num_layers - 1) + round(step * i) for i in range(BLOCK_LAYERS)],
    }
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    content = {name: target[name] for name in sizes} | heads
    content |= {"architectures": ["DFlashDraftModel"], "model_type": "qwen3"}
    content |= {"num_hidden_layers": BLOCK_LAYERS, "block_size": BLOCK_TOKENS}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(content | {"dflash_config": nested}))
    return folder


def drafters(shape: str, folder: Path) -> dict[str, SpeculativeConfig | None]:
    """The drafters that are compared, by name; the first stands for none."""

    def synthetic(length: float, num_drafts: int = NUM_DRAFTS) -> dict[str, Any]:
        return {
            "num_speculative_tokens": num_drafts,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": length,
        }

    eagle = str(write_head(shape, folder / "eagle"))
    draft_vocab = min(DRAFT_VOCAB, shape_config(shape)["vocab_size"])
    eagle3 = str(write_head(shape, folder / "eagle3", draft_vocab_size=draft_vocab))
    return {
        "plain": None,
        "eagle": SpeculativeConfig(method="eagle", model=eagle, **synthetic(LENGTH)),
        "eagle, refused": SpeculativeConfig(method="eagle", model=eagle, **synthetic(1.0)),
        "eagle, 32k": SpeculativeConfig(method="eagle3", model=eagle3, **synthetic(LENGTH)),
        "dflash": SpeculativeConfig(
            method="dflash",
            model=str(write_block_head(shape, folder / "dflash")),
            **synthetic(BLOCK_LENGTH, BLOCK_TOKENS - 1),
        ),
    }


def engine_of(
    model: CausalLM, config: ModelConfig, speculation: SpeculativeConfig | None, max_rows: int
) -> Engine:
    """An engine around a model that is loaded."""
    engine_config = EngineConfig(
        model=config,
        cache=CacheConfig(num_blocks=max_rows * MAX_LEN // 16 + 2, prefix_caching=False),
        scheduler=SchedulerConfig(max_rows=max_rows, max_step_tokens=4096),
        speculation=speculation,
        wait_for_kernels=True,
    )
    return assemble(engine_config, model, DEVICE).engine()


def random_prompts(count: int) -> list[Int32Array]:
    """Prompts of words that every vocabulary here has."""
    rng = np.random.default_rng(count)
    return list(rng.integers(2, 30_000, (count, PROMPT_TOKENS)).astype(np.int32))


def time_a_token(engine: Engine, prompts: list[Int32Array], params: SamplingParams) -> float:
    """Milliseconds between two tokens of a row while the rows of all prompts decode."""
    batch = len(prompts)
    for handle, prompt in enumerate(prompts):
        request = Request(
            handle=handle, prompt_token_ids=prompt, params=params, max_tokens=NEW_TOKENS
        )
        engine.submit(b"", request)
    num_new = np.zeros(batch, dtype=np.int64)
    while num_new.min() == 0:
        _step(engine, num_new)
    started, first = time.perf_counter(), int(num_new.sum())
    while num_new.max() < NEW_TOKENS:  # until the first ends all run
        _step(engine, num_new)
    elapsed = time.perf_counter() - started
    for handle in range(batch):
        engine.abort(b"", handle)
    while engine.has_work:
        engine.step()
    return 1000.0 * elapsed * batch / (int(num_new.sum()) - first)


def _step(engine: Engine, num_new: Int64Array) -> None:
    for _, output in engine.step():
        np.add.at(num_new, output.handles, output.num_new)


def free_memory() -> None:
    """Give back the memory of engines that nobody holds any more."""
    gc.unfreeze()  # an engine freezes what was loaded
    gc.collect()
    torch.cuda.empty_cache()


def of_all_asked(engine: Engine, prompts: list[Int32Array]) -> dict[str, float]:
    """The rate of rows that ask for logprobs and more over that of rows that do not.

    Seeds are measured alone too: they must not keep rows from the drafts that pay.
    """
    asked = {
        "nothing": SamplingParams(),
        "seeds": SamplingParams(seed=1),
        "no_seeds": msgspec.structs.replace(ALL_ASKED, seed=None),
        "all_asked": ALL_ASKED,
    }
    times = {}
    for name, params in asked.items():
        time_a_token(engine, prompts, params)
        times[name] = time_a_token(engine, prompts, params)
    rates = {f"rate_{name}": round(times["nothing"] / ms, 3) for name, ms in times.items()}
    return {"ms_all_asked": round(times["all_asked"], 3), **rates}


def measurements(shape: str, batches: list[int]) -> Iterator[dict[str, Any]]:
    """Yield a row for each drafter and batch; those of plain decoding come first."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(write_shape(shape, Path(temporary) / "target"))
        config = ModelConfig(model=folder, max_model_len=MAX_LEN, load_format="dummy")
        model = load_model(config, DEVICE)
        plain: dict[int, float] = {}
        for name, speculation in drafters(shape, Path(temporary)).items():
            engine = engine_of(model, config, speculation, max(batches))
            for batch in batches:
                prompts = random_prompts(batch)
                time_a_token(engine, prompts, SamplingParams())
                per_token = time_a_token(engine, prompts, SamplingParams())
                plain.setdefault(batch, per_token)
                stats = engine.stats().drafts
                length = 1 + stats.num_accepted / max(stats.num_drafts, 1) if stats else 1.0
                yield {
                    "drafter": name,
                    "batch": batch,
                    "ms_per_token": round(per_token, 3),
                    "times_faster": round(plain[batch] / per_token, 3),
                    "tokens_per_step": round(length, 2),
                }
            if name == "dflash":
                prompts = random_prompts(min(ALL_ASKED_ROWS, max(batches)))
                yield {"drafter": name, "batch": len(prompts), **of_all_asked(engine, prompts)}
            del engine
            free_memory()


def figures(shape: str) -> Iterator[Figure]:
    """The figures: how much faster a token comes than without speculation."""
    batches = [1, 2] if shape == TINY else list(BATCHES)
    for row in measurements(shape, batches):
        print(shape, row, flush=True)
        if row["drafter"] == "plain":
            continue
        if "rate_all_asked" in row:
            what = f"speculation: {shape}, dflash, batch {row['batch']}: logprobs, seeds, min-p"
            share = row["rate_all_asked"]
            made = figure(what, share, "ratio", ">=", ALL_ASKED_MUST, 1.0)
            yield made | {"command": f"{COMMAND} --shape {shape}", "check": ""}
            continue
        check = f"{row['tokens_per_step']} tokens a step accepted, {row['ms_per_token']} ms a token"
        key = row["drafter"], row["batch"]
        what = f"speculation: {shape}, {key[0]}, batch {key[1]}: times faster"
        must, aim = MUSTS.get(key), AIMS.get(key)
        made = figure(what, row["times_faster"], "ratio", ">=", must, None, aim)
        yield made | {"command": f"{COMMAND} --shape {shape}", "check": check}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", default="qwen3-8b", choices=[*SHAPES, TINY])
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    args = parser.parse_args()
    batches = [int(batch) for batch in args.batches.split(",")]
    rows = []
    for row in measurements(args.shape, batches):
        print(row, flush=True)
        rows.append(row)
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
    print(json.dumps({"device": name, "rows": rows}))


if __name__ == "__main__":
    main()
