"""Speculation on a GPU: graphs, eager steps and plain decoding agree, and nothing waits.

In float32 tokens are equal where logits are; those of one and of several query tokens differ in
the order of sums, and the prompts are such that no choice is that close.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from demo import MODEL_FOLDER
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.messages.request import Request
from engine.runner.model_runner import ModelRunner
from engine.speculative_config import SpeculativeConfig
from engine.startup.build import build_engine
from sampling.params import SamplingParams
from tests.engine.traffic import one_a_step

pytestmark = pytest.mark.gpu

HEAD = str(Path(MODEL_FOLDER).parent / "eagle")
K = 4
PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(seed=1, temperature=0.9),
    SamplingParams(seed=2, temperature=0.8, top_k=30, top_p=0.9),
    SamplingParams(seed=3, presence_penalty=0.6, repetition_penalty=1.2, bad_words=((7, 9),)),
    SamplingParams(seed=4, logprobs=3, logprob_token_ids=(5, 6)),
]


def speculation(**fields: Any) -> SpeculativeConfig:
    defaults: dict[str, Any] = {
        "method": "eagle",
        "model": HEAD,
        "num_speculative_tokens": K,
    }
    return SpeculativeConfig(**defaults | fields)


def engine_of(
    config: SpeculativeConfig | None, *, cuda_graphs: bool = True, max_rows: int = 8
) -> Engine:
    return build_engine(
        EngineConfig(
            model=ModelConfig(model=str(MODEL_FOLDER), dtype="float32", max_model_len=256),
            cache=CacheConfig(num_blocks=400),
            scheduler=SchedulerConfig(max_rows=max_rows, max_step_tokens=96),
            cuda_graphs=cuda_graphs,
            speculation=config,
        )
    )


def run(
    engine: Engine,
    order: list[int] | None = None,
    max_tokens: int = 40,
    wishes: list[SamplingParams] = PARAMS,
) -> dict[int, list[int]]:
    """Requests arrive one a step; `order` says which first."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(2, 8000, n).astype(np.int32) for n in (3, 17, 40, 64, 9, 30, 21, 5)]
    return one_a_step(
        engine,
        [
            Request(
                handle=handle,
                prompt_token_ids=prompts[handle],
                params=wishes[handle % len(wishes)],
                max_tokens=max_tokens,
            )
            for handle in order or range(len(prompts))
        ],
    )


@pytest.mark.parametrize("method", ["standard", "coupled"])
def test_tokens_of_one_hot_and_coupled_drafts_are_those_of_plain_decoding(method: str) -> None:
    wanted = run(engine_of(None))
    config = speculation(rejection_sample_method=method)
    for cuda_graphs in (True, False):
        assert run(engine_of(config, cuda_graphs=cuda_graphs)) == wanted


def test_sampled_drafts_leave_greedy_tokens_as_they_are() -> None:
    wanted = run(engine_of(None))
    tokens = run(engine_of(speculation(draft_sample_method="gumbel")))
    greedy = [handle for handle in wanted if handle % len(PARAMS) == 0]
    assert [tokens[handle] for handle in greedy] == [wanted[handle] for handle in greedy]


@pytest.mark.parametrize(
    ("sample_method", "method"),
    [("greedy", "standard"), ("gumbel", "standard"), ("gumbel", "block")],
)
def test_eager_captured_and_reordered_rows_accept_the_same(
    sample_method: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first replay after warm-up included: the graphs' engine runs it first of all.

    Without times of steps, which eager ones differ in, the two draft as much.
    """
    monkeypatch.setattr(ModelRunner, "step_costs", lambda runner: None)
    config = speculation(draft_sample_method=sample_method, rejection_sample_method=method)
    graphs, eager = engine_of(config), engine_of(config, cuda_graphs=False)
    first, again = run(graphs), run(graphs, order=[7, 2, 5, 0, 3, 6, 1, 4])
    assert first == again == run(eager)
    captured, plain = graphs.stats().drafts, eager.stats().drafts
    assert captured is not None
    assert plain is not None
    assert captured.num_accepted == 2 * plain.num_accepted


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_other_drafters_leave_coupled_tokens_as_they_are(method: str) -> None:
    fields = {"model": None} if method == "ngram" else {"model": str(MODEL_FOLDER)}
    wanted = run(engine_of(None))
    engine = engine_of(speculation(method=method, rejection_sample_method="coupled", **fields))
    assert run(engine) == wanted


def test_a_draft_model_that_is_the_target_is_always_right() -> None:
    engine = engine_of(speculation(method="draft_model", model=str(MODEL_FOLDER)))
    run(engine, wishes=PARAMS[:1])
    stats = engine.stats().drafts
    assert stats is not None
    assert (
        stats.num_drafts >= 32
    )  # until then all are made; then as many as pay by this GPU's times
    assert stats.num_accepted == stats.num_draft_tokens


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_no_step_waits_for_the_gpu(cuda_graphs: bool, no_waiting: None) -> None:
    engine = engine_of(speculation(draft_sample_method="gumbel"), cuda_graphs=cuda_graphs)
    run(engine, max_tokens=8)  # compiles what is compiled on first use
    torch.cuda.set_sync_debug_mode("error")
    run(engine, max_tokens=8)
