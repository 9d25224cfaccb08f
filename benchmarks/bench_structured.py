"""Time a token of rows under grammars beside that of rows without, on random weights.

    python -m benchmarks.bench_structured --shape qwen3-0.6b

The target has the shape of a real model. Its tokenizer is that of the demo model, 8192 tokens of
byte-level BPE, filled up to the vocabulary with joined pairs of its tokens, as longer merges would
be. Random weights draw random tokens among those a schema allows; its arrays are longer than a
reply, so that all rows draw the same number of tokens, constrained or not. Prints a line a
measurement; the last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer

from benchmarks.bench_speculation import free_memory
from benchmarks.figures import Figure, figure
from benchmarks.shapes import BIG, QWEN3, write_shape
from demo import MODEL_FOLDER
from engine.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    StructuredConfig,
)
from engine.contracts.model import CausalLM
from engine.engine import Engine
from engine.messages.request import Grammar, Request
from engine.models.loader import load_model
from engine.startup.build import assemble
from engine.structured.tokenizer import TokenizerReader
from sampling.params import SamplingParams

NUM_ROWS, PROMPT_TOKENS, NEW_TOKENS, MAX_LEN = 256, 64, 256, 512
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
COMMAND = "python -m benchmarks.bench_structured"
CHECK = "every reply's tokens consumed by a fresh matcher of its schema"
NUM_FILLS = 20_000
FILL_MS = 2.0
"""The time that all but one of a thousand masks must be filled in."""
MIXES = ("none", "one schema", "a schema a row", "half the rows")
MUSTS = {("qwen3-0.6b", "one schema"): 0.75, ("qwen3-0.6b", "a schema a row"): 0.75}
MUSTS |= {(BIG, "one schema"): 0.97, ("qwen3-0.6b", "half the rows"): 0.97}
"""The least share of the unconstrained rate; half constrained, the others may lose 3 %."""


def write_folder(shape: str, folder: Path) -> str:
    """Write a shape whose tokenizer has real tokens, see the module."""
    write_shape(shape, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 0}))
    serialized = json.loads((MODEL_FOLDER / "tokenizer.json").read_text())
    vocab: dict[str, int] = serialized["model"]["vocab"]
    added = serialized["added_tokens"]
    special = {token["content"] for token in added}
    parts = [token for token in vocab if token not in special and 2 <= len(token) <= 6]
    random.Random(0).shuffle(parts)
    apart = [token for token in added if token["content"] not in vocab]
    for first, second in itertools.product(parts, parts):
        if len(vocab) + len(apart) >= QWEN3["vocab_size"]:
            break
        vocab.setdefault(first + second, len(vocab))
    for i, token in enumerate(apart):
        token["id"] = len(vocab) + i
    (folder / "tokenizer.json").write_text(json.dumps(serialized))
    shutil.copy(MODEL_FOLDER / "tokenizer_config.json", folder)
    return str(folder)


def grammar(number: int) -> str:
    """The grammar of a long array of objects; each number has a schema of its own."""
    item = {
        "type": "object",
        "properties": {
            f"name_{number}": {"type": "string", "maxLength": 40},
            "kind": {"enum": ["alpha", "beta", f"kind {number}"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 100_000 + number},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
            "note": {"type": ["string", "null"], "maxLength": 200},
        },
        "required": [f"name_{number}", "kind", "count", "tags", "note"],
        "additionalProperties": False,
    }
    schema = {
        "type": "array",
        "items": item,
        "minItems": NEW_TOKENS,
        "x-guidance": {"whitespace_flexible": False},
    }
    # As the server's own sources: every token that the text allows, not the canonical one alone.
    lark = f'start: %json {json.dumps(schema)}\n%llguidance {{"no_forcing": true}}\n'
    return json.dumps({"grammars": [{"lark_grammar": lark}]})


def grammars_of(mix: str) -> list[str | None]:
    """The grammar of each row."""
    if mix == "none":
        return [None] * NUM_ROWS
    if mix == "half the rows":
        return [grammar(0) if row % 2 else None for row in range(NUM_ROWS)]
    return [grammar(row if mix == "a schema a row" else 0) for row in range(NUM_ROWS)]


def engine_of(model: CausalLM, config: ModelConfig) -> Engine:
    """An engine around a model that is loaded."""
    structured = StructuredConfig(tokenizer=config.model, cache_size=2 * NUM_ROWS)
    engine_config = EngineConfig(
        model=config,
        cache=CacheConfig(num_blocks=NUM_ROWS * MAX_LEN // 16 + 2, prefix_caching=False),
        scheduler=SchedulerConfig(max_rows=NUM_ROWS, max_step_tokens=4096),
        structured=structured,
        wait_for_kernels=True,
    )
    return assemble(engine_config, model, DEVICE, tokenizer=TokenizerReader(structured)).engine()


class Run:
    """All rows of a mix from their submission to their end.

    Attributes:
        tokens: of each row.
        token_ms: milliseconds between two tokens of a row while all rows decode; of no use where
            their grammars were not compiled before.
    """

    def __init__(self, engine: Engine, sources: list[str | None], seed: int) -> None:
        rng = np.random.default_rng(seed)
        prompts = rng.integers(2, 8000, (len(sources), PROMPT_TOKENS)).astype(np.int32)
        self.tokens: list[list[int]] = [[] for _ in sources]
        for handle, (source, prompt) in enumerate(zip(sources, prompts, strict=True)):
            request = Request(
                handle=handle,
                prompt_token_ids=prompt,
                params=SamplingParams(seed=seed + handle, constrained=source is not None),
                max_tokens=NEW_TOKENS,
                grammar=None if source is None else Grammar(source=source),
            )
            engine.submit(b"", request)
        while min(map(len, self.tokens)) == 0:
            self._step(engine)
        started, first = time.perf_counter(), sum(map(len, self.tokens))
        while max(map(len, self.tokens)) < NEW_TOKENS:  # until the first ends all rows run
            self._step(engine)
        elapsed, drawn = time.perf_counter() - started, sum(map(len, self.tokens)) - first
        # Where grammars are compiled first, rows may have ended before the last one began.
        self.token_ms = 1000.0 * elapsed * len(sources) / max(drawn, 1)
        while engine.has_work:
            self._step(engine)

    def _step(self, engine: Engine) -> None:
        if not engine.has_work:
            time.sleep(1e-3)  # grammars are being compiled
        for _, output in engine.step():
            if output.errors:
                raise RuntimeError(str(output.errors))
            handles = np.repeat(output.handles, output.num_new)
            for handle, token in zip(handles.tolist(), output.token_ids.tolist(), strict=True):
                self.tokens[handle].append(token)


def check(tokenizer: LLTokenizer, sources: list[str | None], tokens: list[list[int]]) -> None:
    """Raise where a reply is short or has a token that its grammar forbids."""
    compiled = {source: LLMatcher(tokenizer, source) for source in set(sources) if source}
    for source, ids in zip(sources, tokens, strict=True):
        if len(ids) != NEW_TOKENS:
            raise AssertionError(f"a reply of {len(ids)} tokens")
        if source is not None and not compiled[source].deep_copy().consume_tokens(ids):
            raise AssertionError("a reply that its grammar forbids")


def fill_times(tokenizer: LLTokenizer, replies: list[tuple[str, list[int]]]) -> list[float]:
    """Milliseconds to fill single masks on one thread along replies, `NUM_FILLS` of them."""
    buffer = np.zeros(-(-tokenizer.vocab_size // 32), dtype=np.int32)
    times: list[float] = []
    compiled = {source: LLMatcher(tokenizer, source) for source in {s for s, _ in replies}}
    for source, ids in replies:
        matcher = compiled[source].deep_copy()
        for token in ids:
            began = time.perf_counter()
            matcher.unsafe_compute_mask_ptr(buffer.ctypes.data, buffer.nbytes)
            times.append(1000.0 * (time.perf_counter() - began))
            matcher.consume_token(token)
        if len(times) >= NUM_FILLS:
            break
    return times


def measurements(shape: str, mixes: list[str], repeat: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each mix, unconstrained first, and one for the times of single masks."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_folder(shape, Path(temporary) / "target")
        config = ModelConfig(model=folder, max_model_len=MAX_LEN, load_format="dummy")
        model = load_model(config, DEVICE)
        tokenizer = TokenizerReader(StructuredConfig(tokenizer=folder)).result(
            model.vocab_size, [0]
        )
        engine = engine_of(model, config)
        plain_ms, replies = 0.0, []
        for mix in mixes:
            sources = grammars_of(mix)
            runs = [Run(engine, sources, 1000 * attempt) for attempt in range(repeat + 1)]
            for run in runs:
                check(tokenizer, sources, run.tokens)
            token_ms = min(run.token_ms for run in runs[1:])  # the first compiles
            plain_ms = plain_ms or token_ms
            replies += [(s, ids) for s, ids in zip(sources, runs[-1].tokens, strict=True) if s]
            stats = engine.stats().grammars
            assert stats is not None
            row = {"shape": shape, "mix": mix, "token_ms": round(token_ms, 4)}
            row |= {"share": round(plain_ms / token_ms, 4), "masks": stats.num_masks}
            yield row | {"mask_s": round(stats.mask_seconds, 3)}
        if replies:
            random.Random(0).shuffle(replies)
            times = fill_times(tokenizer, replies)
            quantiles = np.quantile(times, [0.5, 0.99, 0.999]).round(4).tolist()
            yield {"shape": shape, "mix": "one mask", "ms": quantiles}
        del engine
        free_memory()


def figures(shape: str) -> Iterator[Figure]:
    """The figures of one shape, as `benchmarks.record` writes them."""
    mixes = [mix for mix in MIXES if mix == "none" or (shape, mix) in MUSTS]
    for row in measurements(shape, mixes, repeat=2):
        name = f"{shape}, 256 rows under grammars"
        if row["mix"] == "one mask":
            value = row["ms"][-1]
            made = figure(f"{name}, one mask, p99.9", value, "ms", "<=", FILL_MS, None)
        elif row["mix"] == "none":
            made = figure(f"{name}, none", row["token_ms"], "ms", "<=", None, None)
        else:
            must = MUSTS[shape, row["mix"]]
            words = f"{name}, {row['mix']}: rate beside none"
            made = figure(words, row["share"], "share", ">=", must, 1.0)
        yield made | {"command": f"{COMMAND} --shape {shape}", "check": CHECK}


def main() -> None:
    """Measure the mixes asked for and print what came of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=("qwen3-0.6b", BIG), default="qwen3-0.6b")
    parser.add_argument("--mixes", default=",".join(MIXES))
    parser.add_argument("--repeat", type=int, default=2)
    args = parser.parse_args()
    rows = []
    for row in measurements(args.shape, args.mixes.split(","), args.repeat):
        rows.append(row)
        print(row, flush=True)
    print(json.dumps({"shape": args.shape, "rows": rows}))


if __name__ == "__main__":
    main()
