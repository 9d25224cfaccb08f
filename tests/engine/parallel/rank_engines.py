"""Engines of several ranks, for tests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import structs

from demo import MODEL_FOLDER
from engine.arrays import LogprobArrays
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.messages.request import PromptLogprobsParams, Request
from engine.messages.step_output import Finish, ItemScores, StepOutput
from engine.submission import entries_of
from sampling.params import SamplingParams
from tests.engine.structured.constrained import STRUCTURED, TOKENIZER
from tests.engine.traffic import request

CONFIG = EngineConfig(
    model=ModelConfig(model=str(MODEL_FOLDER), device="cpu", max_model_len=256),
    cache=CacheConfig(num_blocks=200),
    scheduler=SchedulerConfig(max_rows=16, max_step_tokens=64),
    structured=STRUCTURED,
)

ATOL = 1e-4
"""Of logprobs: some 20 times what the sums of the demo model's layers were seen to differ by."""
TEXTS = ("def main(", "import os\n", "class A:\n    def ", "x = [1, 2, ", "for i in range(")

WISHES: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.8, "logprobs": 5},
    {"temperature": 1.2, "top_k": 20, "top_p": 0.9},
    {"top_p": 0.8, "logprobs": 3, "logprobs_mode": "processed_logprobs", "kept_logprob": True},
    {"min_p": 0.02, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logprob_token_ids": (0, 5000, 8191)},
    {"logit_bias": {7000: 12.0, 3: 5.0}},
    {"allowed_token_ids": tuple(range(100, 8000, 61))},
]


@dataclass
class Results:
    """What an engine answered, by (handle, choice)."""

    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    finish: dict[tuple[int, int], Finish] = field(default_factory=dict)
    logprobs: dict[tuple[int, int], list[LogprobArrays]] = field(default_factory=dict)
    prompts: dict[int, LogprobArrays] = field(default_factory=dict)
    scores: dict[int, list[ItemScores]] = field(default_factory=dict)


Outputs = list[tuple[bytes, StepOutput]]


def read(engine: Engine, before: Sequence[Outputs] = (), limit_s: float = 60.0) -> Results:
    """Step an engine until it has no work left; `before` are the outputs of steps so far."""
    results, deadline = Results(), time.monotonic() + limit_s
    for outputs in before:
        _enter(outputs, results)
    while engine.has_work:
        assert time.monotonic() < deadline, "the engine does not come to an end"
        _enter(engine.step(), results)
    engine.check()
    return results


def _enter(outputs: Outputs, results: Results) -> None:
    for _, output in outputs:
        for handle, entry in zip(output.handles.tolist(), entries_of(output), strict=True):
            key = (handle, entry.choice)
            results.tokens.setdefault(key, []).extend(entry.token_ids.tolist())
            if entry.logprobs is not None and entry.num_new:
                results.logprobs.setdefault(key, []).append(entry.logprobs)
            if entry.finish != Finish.RUNNING:
                results.finish[key] = entry.finish
        for prompt in output.prompt_logprobs:
            results.prompts[prompt.handle] = prompt.logprobs
        for scores in output.item_scores:
            results.scores.setdefault(scores.handle, []).append(scores)


def mixed(count: int = 40) -> list[Request]:
    """Requests of many kinds, some of several choices, some with their prompt's logprobs."""
    made = []
    for i in range(count):
        wish = WISHES[i % len(WISHES)]
        text = TEXTS[i % len(TEXTS)] * (1 + i % 3)
        prompt_logprobs = None
        if i % 5 == 0:
            prompt_logprobs = PromptLogprobsParams(num_top=3, token_ids=(1, 8000))
        made.append(
            request(
                i,
                TOKENIZER.encode(text),
                params=SamplingParams(seed=i, **wish),
                max_tokens=9,
                n=3 if i % 7 == 3 else 1,
                prompt_logprobs=prompt_logprobs,
            )
        )
    return made


def assert_close(mine: LogprobArrays, theirs: LogprobArrays) -> None:
    for name in ("chosen", "top_logprobs", "explicit", "kept"):
        a, b = getattr(mine, name), getattr(theirs, name)
        np.testing.assert_allclose(np.maximum(a, -1e4), np.maximum(b, -1e4), atol=ATOL)


def reported(results: Results, index: int) -> dict[tuple[int, int], LogprobArrays]:
    """The logprobs of choices whose wish asked for some."""
    wish = WISHES[index]
    num_top, num_explicit = wish.get("logprobs", 0), len(wish.get("logprob_token_ids", ()))
    found = {}
    for key, parts in results.logprobs.items():
        if key[0] % len(WISHES) == index:
            whole = LogprobArrays.concat([_cut(part, num_top, num_explicit) for part in parts])
            found[key] = whole
    return found


def _cut(part: LogprobArrays, num_top: int, num_explicit: int) -> LogprobArrays:
    """The columns that were asked for; batches bring as many as any of their rows needs."""
    return structs.replace(
        part,
        top_ids=part.top_ids[:, :num_top],
        top_logprobs=part.top_logprobs[:, :num_top],
        explicit=part.explicit[:, :num_explicit],
    )


def assert_alike(together: Results, alone: Results) -> None:
    """Assert that several ranks gave the tokens and logprobs of one."""
    assert together.tokens == alone.tokens
    assert together.finish == alone.finish
    for index in (0, 1, 3, 5):
        mine, theirs = reported(together, index), reported(alone, index)
        assert mine.keys() == theirs.keys() != set()
        for key, arrays in mine.items():
            assert_close(arrays, theirs[key])
