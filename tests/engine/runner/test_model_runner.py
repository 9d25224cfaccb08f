"""Greedy output of the whole engine equals transformers' token for token in float32.

Requests arrive staggered; prompts are chunked to 16 tokens a step; the prefix cache is on and
off; a small KV cache forces preemption. What a runner does where it cannot go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from engine.batch import RequestRows
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.contracts.runner import RunnerLostError, result_of
from engine.engine import Engine
from engine.plan import StepPlan
from engine.runner.model_runner import ModelRunner
from engine.startup.build import build_engine
from sampling.device.mirror import Writes
from sampling.params import SamplingParams
from sampling.rows import SamplingRows
from tests.engine.choices import choice
from tests.engine.tiny_models import FALLBACK, FUSED, VOCAB, write_model
from tests.engine.traffic import one_a_step, request

MAX_TOKENS = 24


@pytest.fixture(scope="module", params=[*FUSED, *FALLBACK])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, PreTrainedModel]:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, write_model(request.param, folder)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(7)
    shared = rng.integers(2, VOCAB, 37).tolist()
    own = [rng.integers(2, VOCAB, n).tolist() for n in (1, 5, 16, 33, 50, 3)]
    return own[:3] + [shared + ids for ids in own]


Greedy = Callable[[tuple[int, ...], tuple[int, ...]], tuple[int, ...]]


@pytest.fixture(scope="module")
def greedy(model: tuple[Path, PreTrainedModel]) -> Greedy:
    """What transformers finds likeliest after a prompt and each of the tokens that followed.

    Without a cache, in one pass: where every token is the likeliest after those before it, all of
    them are what greedy decoding gives.
    """

    @cache
    def likeliest(prompt: tuple[int, ...], tokens: tuple[int, ...]) -> tuple[int, ...]:
        ids = torch.tensor([prompt + tokens])
        with torch.inference_mode():
            scores = model[1](ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        top = scores.topk(2).values
        assert (top[:, 0] - top[:, 1]).min() > 1e-5, "a near tie: choose another seed"
        return tuple(scores.argmax(1).tolist())

    return likeliest


def _run(engine: Engine, prompts: list[list[int]]) -> dict[int, list[int]]:
    fields: dict[str, Any] = {"params": SamplingParams(temperature=0.0), "max_tokens": MAX_TOKENS}
    asked = [request(i, prompt, **fields) for i, prompt in enumerate(prompts)]
    tokens = one_a_step(engine, asked, num_steps=2)
    assert tokens.keys() == set(range(len(prompts)))
    return tokens


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("num_blocks", [24, 200])
def test_greedy_equals_transformers(
    model: tuple[Path, PreTrainedModel],
    prompts: list[list[int]],
    greedy: Greedy,
    prefix_caching: bool,
    num_blocks: int,
) -> None:
    engine = build_engine(
        EngineConfig(
            model=ModelConfig(model=str(model[0]), device="cpu", max_model_len=128),
            cache=CacheConfig(block_size=8, num_blocks=num_blocks, prefix_caching=prefix_caching),
            scheduler=SchedulerConfig(max_rows=6, max_step_tokens=16),
        )
    )
    for handle, tokens in _run(engine, prompts).items():
        assert len(tokens) == MAX_TOKENS
        assert tuple(tokens) == greedy(tuple(prompts[handle]), tuple(tokens))
    assert (engine.stats().num_preemptions > 0) == (num_blocks == 24)
    assert (engine.stats().prefix_cache_hits > 0) == prefix_caching


def test_rows_that_could_not_be_published_end_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later step would write keys of a vacated row into blocks of others."""
    rows = RequestRows(2, 20, 4, torch.device("cpu"))
    sampling_rows = SamplingRows(2, 50, rows.device, history=rows.token_ids)
    stage = cast(Any, SimpleNamespace(model=None))
    runner = ModelRunner(cast(Any, None), stage, rows, sampling_rows)

    def publish(writes: Sequence[Writes]) -> None:
        raise torch.OutOfMemoryError("no room\nfor any of them")

    monkeypatch.setattr("sampling.rows.publish", publish)
    plan = StepPlan.of_new_rows([choice([5, 6])], 2, 9, np.array([[1]]))
    with pytest.raises(RunnerLostError, match=r"rows could not be published: no room$"):
        result_of(runner.launch(plan))
