"""Requests under grammars on the demo model, and a reader that waits for their compiles."""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from functools import cache
from typing import Any

import jsonschema
import numpy as np
from llguidance import LLMatcher, LLTokenizer
from transformers import AutoTokenizer

from demo import EAGLE_FOLDER, MODEL_FOLDER
from engine.arrays import LogprobArrays
from engine.config import (
    CacheConfig,
    Device,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    StructuredConfig,
)
from engine.engine import Engine
from engine.messages.request import Grammar, Request
from engine.messages.step_output import Finish, StepOutput
from engine.speculative_config import SpeculativeConfig
from engine.startup.build import build_engine
from engine.submission import entries_of
from sampling.params import SamplingParams
from tests.engine.traffic import FRONTEND, Inbox

SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "kind": {"enum": ["x", "yy", None]},
            "size": {"type": "integer", "minimum": 0, "maximum": 9999},
        },
        "required": ["name", "kind", "size"],
        "additionalProperties": False,
    },
    "list": {
        "type": "array",
        "items": {"type": "integer", "minimum": -99, "maximum": 99},
        "minItems": 2,
        "maxItems": 5,
    },
    "nested": {
        "type": "object",
        "properties": {
            "ok": {"type": "boolean"},
            "inner": {
                "type": "object",
                "properties": {"tags": {"type": "array", "items": {"enum": ["a", "b"]}}},
                "required": ["tags"],
                "additionalProperties": False,
            },
        },
        "required": ["ok"],
        "additionalProperties": False,
    },
}
STRUCTURED = StructuredConfig(tokenizer=str(MODEL_FOLDER))
K = 3
EOS = 0
ENDS: tuple[int, ...] = tuple(
    json.loads((MODEL_FOLDER / "generation_config.json").read_text())["eos_token_id"]
)
"""All ids that end a text, `EOS` the first of them."""
TOKENIZER: Any = AutoTokenizer.from_pretrained(MODEL_FOLDER)
PROMPTS = ["x = ", "def parse(self):\n    return ", "import json\ndata = json.loads('"]
EAGLE = {
    method: SpeculativeConfig(
        method="eagle",
        model=str(EAGLE_FOLDER),
        num_speculative_tokens=K,
        draft_sample_method=method,
    )
    for method in ("greedy", "gumbel")
}
NGRAM = SpeculativeConfig(method="ngram", num_speculative_tokens=K)


@cache
def of_schema(name: str) -> str:
    """The grammar of a schema, with little whitespace."""
    return of_json(SCHEMAS[name])


def of_json(schema: dict[str, Any]) -> str:
    return LLMatcher.grammar_from_json_schema(
        schema, overrides={"whitespace_pattern": "[ \\n]{0,1}"}
    )


def of_regex(regex: str) -> str:
    return LLMatcher.grammar_from_regex(regex)


@cache
def ll_tokenizer(vocab_size: int = 8192, ends: tuple[int, ...] = (EOS,)) -> LLTokenizer:
    return LLTokenizer(TOKENIZER.backend_tokenizer.to_str(), vocab_size, list(ends))


def config(
    *,
    max_rows: int = 16,
    max_step_tokens: int = 64,
    num_blocks: int = 400,
    prefix_caching: bool = True,
    device: Device = "cpu",
    cuda_graphs: bool = True,
    speculation: SpeculativeConfig | None = None,
    structured: StructuredConfig | None = STRUCTURED,
) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(
            model=str(MODEL_FOLDER), device=device, dtype="float32", max_model_len=256
        ),
        cache=CacheConfig(block_size=8, num_blocks=num_blocks, prefix_caching=prefix_caching),
        scheduler=SchedulerConfig(max_rows=max_rows, max_step_tokens=max_step_tokens),
        speculation=speculation,
        structured=structured,
        cuda_graphs=cuda_graphs,
    )


def make(**fields: Any) -> Engine:
    """An engine on the demo model; `fields` are those of `config`."""
    return build_engine(config(**fields))


def request(
    handle: int, source: str | None, prompt: str | list[int] = PROMPTS[0], **fields: Any
) -> Request:
    """A request under a grammar; fields that are not `Request`'s are `SamplingParams`'."""
    own = {name: fields.pop(name) for name in list(fields) if name in Request.__struct_fields__}
    ids = TOKENIZER.encode(prompt) if isinstance(prompt, str) else prompt
    begins = {name: fields.pop(name, ()) for name in ("after", "unless_opened")}
    grammar = None if source is None else Grammar(source=source, **begins)
    is_constrained = grammar is not None or own.get("thinking_budget") is not None
    params: dict[str, Any] = {"stop_token_ids": ENDS, "constrained": is_constrained} | fields
    return Request(
        handle=handle,
        prompt_token_ids=np.array(ids, dtype=np.int32),
        params=SamplingParams(**params),
        grammar=grammar,
        **({"max_tokens": 100} | own),
    )


class Reader(Inbox):
    """Steps an engine, and sleeps while it only waits for compiles."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self.logprobs: dict[tuple[int, int], list[LogprobArrays]] = defaultdict(list)
        self._compiled = threading.Event()
        engine.on_compiled(self._compiled.set)

    def read(self, output: StepOutput) -> None:
        super().read(output)
        for entry in entries_of(output):
            handle = int(output.handles[entry.entry_idx])
            if entry.logprobs is not None:
                self.logprobs[handle, entry.choice].append(entry.logprobs)

    def step(self) -> None:
        for _, output in self.engine.step():
            self.read(output)

    def run(self, *requests: Request) -> None:
        """Submit requests and step until every choice of all requests has ended."""
        for each in requests:
            self.engine.submit(FRONTEND, each)
        while self.engine.stats().num_waiting or self.engine.has_work:
            if not self.engine.has_work:
                assert self._compiled.wait(60), "a compile does not end"
                self._compiled.clear()
                continue
            self.step()
        self.engine.check()

    def text(self, handle: int, choice: int = 0) -> str:
        text: str = TOKENIZER.decode(self.tokens[handle, choice], skip_special_tokens=True)
        return text


def check_json(reader: Reader, handle: int, schema: dict[str, Any]) -> int:
    """Check that a request's finished replies validate; returns their number."""
    finished = 0
    for (request_handle, choice), finish in reader.finish.items():
        if request_handle == handle:
            assert finish in (Finish.STOP, Finish.LENGTH), (finish, reader.errors)
            if finish == Finish.STOP:
                jsonschema.validate(json.loads(reader.text(handle, choice)), schema)
                finished += 1
    return finished


def many_requests(reader: Reader, count: int, seed: int = 0, **fields: Any) -> dict[int, str]:
    """Run requests of every schema, some without one, with n and streams; returns their schemas."""
    rng = random.Random(seed)
    schemas: dict[int, str] = {}
    requests = []
    for handle in range(count):
        schema = rng.choice([*SCHEMAS, ""])
        schemas[handle] = schema
        requests.append(
            request(
                handle,
                of_schema(schema) if schema else None,
                rng.choice(PROMPTS) * rng.choice([1, 4]),
                seed=seed * count + handle,
                temperature=rng.choice([0.0, 0.7, 1.0]),
                top_p=rng.choice([1.0, 0.9]),
                presence_penalty=rng.choice([0.0, 0.5]),
                n=rng.choice([1, 3]),
                max_tokens=rng.choice([40, 90]) if schema else 10,
                emit_interval=rng.choice([1, 16]),
                **fields,
            )
        )
    reader.run(*requests)
    return schemas
