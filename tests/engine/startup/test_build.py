"""After an engine is ready nothing is compiled, whatever requests ask for and however many run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from demo import MODEL_FOLDER
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.messages.request import PromptLogprobsParams, Request, ScoringRequest
from engine.messages.step_output import Finish
from engine.speculative_config import DraftSampleMethod, SpeculativeConfig
from engine.startup.build import build_engine
from sampling.device.compiling import compiling_together, on_compilation
from sampling.params import SamplingParams

MAX_ROWS = 24
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.7, "seed": 5},
    {"top_k": 40},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.05},
    {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.2},
    {"logit_bias": {5: 3.0, 6: -100.0}, "top_k": 5},
    {"allowed_token_ids": tuple(range(100, 400)), "top_p": 0.5},
    {"bad_words": ((7,), (8, 9)), "min_tokens": 3, "stop_token_ids": (3,)},
    {"logprobs": 0},
    {"logprobs": 1, "temperature": 0.0},
    {"logprobs": 5, "top_k": 10, "logprobs_mode": "processed_logprobs"},
    {"logprobs": 17, "logprobs_mode": "raw_logits"},
    {"logprobs": 20, "top_p": 0.8, "logprobs_mode": "processed_logits"},
    {"logprob_token_ids": (4,)},
    {"logprob_token_ids": tuple(range(3, 12)), "logprobs": 2},
    {"logprob_token_ids": tuple(range(128)), "presence_penalty": 0.1},
]
PROMPT_SCORES = [None, None, None, (0, ()), (3, (1, 2, 3)), (20, tuple(range(128)))]


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Names of kernels compiled after an engine is ready."""
    names: list[str] = []
    yield names
    on_compilation(None)


def make_engine(cuda_graphs: bool = True, speculation: SpeculativeConfig | None = None) -> Engine:
    return build_engine(
        EngineConfig(
            model=ModelConfig(model=str(MODEL_FOLDER), dtype="bfloat16", max_model_len=512),
            cache=CacheConfig(num_blocks=2000),
            scheduler=SchedulerConfig(max_rows=MAX_ROWS, max_step_tokens=256),
            cuda_graphs=cuda_graphs,
            speculation=speculation,
        )
    )


def requests(count: int, rng: np.random.Generator) -> Iterator[Request]:
    for handle in range(count):
        scores = PROMPT_SCORES[rng.integers(len(PROMPT_SCORES))]
        yield Request(
            handle=handle,
            prompt_token_ids=rng.integers(3, 8000, rng.integers(1, 90)).astype(np.int32),
            params=SamplingParams(**KINDS[rng.integers(len(KINDS))]),
            n=int(rng.choice([1, 1, 1, 3])),
            max_tokens=int(rng.integers(1, 12)),
            prompt_logprobs=scores and PromptLogprobsParams(num_top=scores[0], token_ids=scores[1]),
        )


def serve(engine: Engine, waiting: list[Request], at_once: int) -> None:
    running: set[int] = set()
    while waiting or engine.has_work:
        while waiting and len(running) < at_once:
            running.add(waiting[-1].handle)
            engine.submit(b"", waiting.pop())
        for _, output in engine.step():
            assert not output.errors, output.errors
            running -= set(output.handles[output.finish > 0].tolist())


@pytest.mark.gpu
def test_nothing_is_compiled_for_items_that_share_a_query(compiled: list[str]) -> None:
    engine = make_engine()
    on_compilation(compiled.append)
    rng = np.random.default_rng(4)
    for handle, (num_items, item_len, query_len) in enumerate(
        [(40, 9, 100), (1, 3, 0), (7, 1, 33)]
    ):
        query, items = (
            rng.integers(3, 8000, size).astype(np.int32)
            for size in (query_len, num_items * item_len)
        )
        request = ScoringRequest(
            handle=handle,
            query_token_ids=query,
            item_token_ids=items,
            item_lens=np.full(num_items, item_len, dtype=np.int32),
            num_read=np.ones(num_items, dtype=np.int32),
            id_lists=np.array([[50, 60]], dtype=np.int32),
        )
        engine.score(b"", request)
        while engine.has_work:
            for _, output in engine.step():
                assert [scores.finish for scores in output.item_scores] in ([], [Finish.LENGTH])
    assert sorted(set(compiled)) == []


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graphs", [True, False])
@pytest.mark.parametrize("draft_sample_method", [None, "greedy", "gumbel"])
def test_nothing_is_compiled_inside_a_request(
    cuda_graphs: bool, draft_sample_method: DraftSampleMethod | None, compiled: list[str]
) -> None:
    speculation = None
    if draft_sample_method is not None:
        speculation = SpeculativeConfig(
            method="eagle",
            model=str(MODEL_FOLDER.parent / "eagle"),
            num_speculative_tokens=3,
            draft_sample_method=draft_sample_method,
        )
    engine = make_engine(cuda_graphs, speculation)
    on_compilation(compiled.append)
    rng = np.random.default_rng(3)
    for at_once in (1, 2, 5, 40):
        serve(engine, list(requests(60, rng)), at_once)
    assert sorted(set(compiled)) == []


@pytest.mark.gpu
def test_kernels_compile_together_and_are_not_launched(compiled: list[str]) -> None:
    from engine.kernels.activation import silu_and_mul

    x = torch.randn(5, 2 * 48, device="cuda")
    with compiling_together():
        silu_and_mul(x)
        silu_and_mul(x.bfloat16())
    on_compilation(compiled.append)
    wanted = torch.nn.functional.silu(x[:, :48]) * x[:, 48:]
    torch.testing.assert_close(silu_and_mul(x), wanted)
    torch.testing.assert_close(silu_and_mul(x.bfloat16()).float(), wanted, rtol=0.02, atol=0.02)
    assert compiled == []
