"""Scores of real architectures equal transformers' in float32, whatever steps they came in."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.messages.request import Branches, ScoringRequest
from engine.messages.step_output import ItemScores
from engine.runner import logit_chunks
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


def _run(engine: Engine, cases: list[ScoringRequest]) -> dict[int, ItemScores]:
    ended: dict[int, ItemScores] = {}
    for case in cases:
        engine.score(b"", case)
    while engine.has_work:
        for _, output in engine.step():
            ended |= {scores.handle: scores for scores in output.item_scores}
    return ended


def _wanted(model: PreTrainedModel, case: ScoringRequest) -> tuple[np.ndarray, np.ndarray]:
    values, others, start = [], [], 0
    lists = itertools.cycle(torch.from_numpy(case.id_lists).long())
    for length, num_read in zip(case.item_lens, case.num_read, strict=True):
        item = case.item_token_ids[start : start + length]
        start += length
        ids = torch.from_numpy(np.concatenate([case.query_token_ids, item])).long()[None]
        with torch.inference_mode():
            logits = model(ids).logits[0, -int(num_read) :].double()
        table = logits.log_softmax(-1)
        for position, listed in zip(table, lists, strict=False):
            values.append(position[listed].tolist())
            position[listed] = -torch.inf
            others.append(position.logsumexp(-1).item())
    return np.array(values), np.array(others)


@pytest.mark.parametrize(("budget", "prefix_caching"), [(16, True), (64, False), (512, True)])
def test_values_equal_transformers(
    model: tuple[Path, PreTrainedModel], budget: int, prefix_caching: bool
) -> None:
    cases = _cases()
    _check(_run(_engine(model[0], budget, prefix_caching), cases), cases, model[1])


@pytest.mark.parametrize("positions_at_once", [1, 3])
def test_values_of_several_chunks_of_the_lm_head(
    positions_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each position reads its own one of the request's two id lists, in a later chunk too."""
    monkeypatch.setattr(logit_chunks, "LOGITS_BYTES", positions_at_once * 4 * VOCAB)
    lists = np.random.default_rng(5).permutation(VOCAB)[:6].reshape(2, 3).astype(np.int32)
    cases = [msgspec.structs.replace(case, id_lists=lists) for case in _cases()]
    peer = write_model("qwen3", tmp_path)
    _check(_run(_engine(tmp_path, 512), cases), cases, peer)


@pytest.mark.parametrize("budget", [16, 512])
def test_values_of_several_branches_an_item(
    model: tuple[Path, PreTrainedModel], budget: int
) -> None:
    """Branches read the keys of their item's stem, computed in the same step or in earlier ones."""
    rng = np.random.default_rng(9)
    counts, lens = np.array([3, 1, 4]), np.array([1, 2, 0, 2, 3, 1, 1, 2])
    case = ScoringRequest(
        handle=0,
        query_token_ids=rng.integers(2, VOCAB, 37).astype(np.int32),
        item_token_ids=rng.integers(2, VOCAB, 87).astype(np.int32),
        item_lens=np.array([50, 7, 30], dtype=np.int32),
        branches=Branches(
            counts=counts.astype(np.int32),
            lens=lens.astype(np.int32),
            token_ids=rng.integers(2, VOCAB, lens.sum()).astype(np.int32),
        ),
        num_read=(lens + 1).astype(np.int32),
        id_lists=rng.permutation(VOCAB)[:3].astype(np.int32)[None],
    )
    ended = _run(_engine(model[0], budget), [case])
    items = [np.split(case.item_token_ids, [50, 57])[i] for i in np.repeat([0, 1, 2], counts)]
    assert case.branches is not None
    branches = np.split(case.branches.token_ids, np.cumsum(lens)[:-1])
    whole = [np.concatenate(pair) for pair in zip(items, branches, strict=True)]
    alone = msgspec.structs.replace(
        case,
        item_token_ids=np.concatenate(whole),
        item_lens=np.array([len(each) for each in whole], dtype=np.int32),
        branches=None,
    )
    _check(ended, [alone], model[1])


@pytest.mark.parametrize("budget", [16, 512])
def test_hidden_states_equal_transformers(model: tuple[Path, PreTrainedModel], budget: int) -> None:
    case = msgspec.structs.replace(
        _cases()[2], embeds=True, id_lists=np.zeros((1, 0), dtype=np.int32)
    )
    case = msgspec.structs.replace(case, num_read=np.ones_like(case.num_read))
    hidden = _run(_engine(model[0], budget), [case])[case.handle].hidden
    assert hidden is not None
    ends = np.cumsum(case.item_lens)[:-1]
    for own, item in zip(hidden, np.split(case.item_token_ids, ends), strict=True):
        ids = torch.from_numpy(np.concatenate([case.query_token_ids, item])).long()[None]
        with torch.inference_mode():
            want = model[1].base_model(ids).last_hidden_state[0, -1]
        # Float32 forwards in different orders of summation, as for logits.
        np.testing.assert_allclose(own, want, rtol=0, atol=1e-4)


def _check(
    ended: dict[int, ItemScores], cases: list[ScoringRequest], peer: PreTrainedModel
) -> None:
    for case in cases:
        values, others = _wanted(peer, case)
        # Float32 forwards in different orders of summation: logits agree to about 1e-5.
        np.testing.assert_allclose(ended[case.handle].values, values, rtol=0, atol=1e-4)
        np.testing.assert_allclose(ended[case.handle].others, others, rtol=0, atol=1e-4)
