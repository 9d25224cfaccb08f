"""Scores of real architectures equal transformers' in float32, whatever steps they came in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.request import ItemScores, ScoringRequest
from engine.startup.build import build_engine
from tests.engine.tiny_models import VOCAB, write_model

KINDS = ("qwen3", "mistral", "bloom", "gpt_oss", "gpt2")  # windows, ALiBi, sinks, positions


@pytest.fixture(scope="module", params=KINDS)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, PreTrainedModel]:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, write_model(request.param, folder)


def _engine(folder: Path, budget: int, prefix_caching: bool = True) -> Engine:
    return build_engine(
        EngineConfig(
            model=ModelConfig(model=str(folder), device="cpu", dtype="float32"),
            cache=CacheConfig(num_blocks=40, prefix_caching=prefix_caching),
            scheduler=SchedulerConfig(max_rows=4, max_step_tokens=budget),
        )
    )


def _cases() -> list[ScoringRequest]:
    rng = np.random.default_rng(3)
    cases = []
    for handle, (query_len, lens) in enumerate(
        [(0, (5,)), (3, (1, 2)), (37, (9, 1, 30, 4, 4, 70)), (32, (1,)), (37, (2, 2))]
    ):
        rng = np.random.default_rng(query_len)  # equal lengths are equal queries
        query = rng.integers(2, VOCAB, query_len)
        rng = np.random.default_rng(100 + handle)
        cases.append(
            ScoringRequest(
                handle=handle,
                query_token_ids=query.astype(np.int32),
                item_token_ids=rng.integers(2, VOCAB, sum(lens)).astype(np.int32),
                item_lens=np.array(lens, dtype=np.int32),
                num_read=np.array([min(n, 2) for n in lens], dtype=np.int32),
                id_lists=rng.permutation(VOCAB)[:3].astype(np.int32)[None],
            )
        )
    return cases


def _wanted(model: PreTrainedModel, case: ScoringRequest) -> tuple[np.ndarray, np.ndarray]:
    values, others, start = [], [], 0
    for length, num_read in zip(case.item_lens, case.num_read, strict=True):
        item = case.item_token_ids[start : start + length]
        start += length
        ids = torch.from_numpy(np.concatenate([case.query_token_ids, item])).long()[None]
        with torch.inference_mode():
            logits = model(ids).logits[0, -int(num_read) :].double()
        table = logits.log_softmax(-1)
        listed = torch.from_numpy(case.id_lists[0]).long()
        values += table[:, listed].tolist()
        table[:, listed] = -torch.inf
        others += table.logsumexp(-1).tolist()
    return np.array(values), np.array(others)


@pytest.mark.parametrize(("budget", "prefix_caching"), [(16, True), (64, False), (512, True)])
def test_values_equal_transformers(
    model: tuple[Path, PreTrainedModel], budget: int, prefix_caching: bool
) -> None:
    engine, ended = _engine(model[0], budget, prefix_caching), dict[int, ItemScores]()
    cases = _cases()
    for case in cases:
        engine.score(b"", case)
    while engine.has_work:
        for _, output in engine.step():
            ended |= {scores.handle: scores for scores in output.item_scores}
    for case in cases:
        values, others = _wanted(model[1], case)
        # Float32 forwards in different orders of summation: logits agree to about 1e-5.
        np.testing.assert_allclose(ended[case.handle].values, values, rtol=0, atol=1e-4)
        np.testing.assert_allclose(ended[case.handle].others, others, rtol=0, atol=1e-4)
