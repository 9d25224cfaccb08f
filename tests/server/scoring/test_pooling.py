"""Embeddings of hidden states, next to a float64 computation of the whole way from ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.startup.build import build_engine
from server.config import Pooling
from server.scoring import pooling as pooling_module
from server.scoring.pooling import EmbeddingPrompts, pooled
from server.scoring.sentence_modules import pooling_of
from tests.engine.tiny_models import VOCAB, write_model
from tests.server.scoring.sentence_folder import ACTIVATIONS, LAST, MEAN, write_dense, write_modules


def test_vectors_are_cut_and_normalized() -> None:
    hidden = np.array([[3.0, 4.0, 12.0], [0.0, 0.0, 0.0]], dtype=np.float32)
    whole = pooled(hidden, None, Pooling())
    np.testing.assert_allclose(whole[0], np.array([3, 4, 12]) / 13, rtol=1e-7)
    np.testing.assert_allclose(pooled(hidden, 2, Pooling())[0], [0.6, 0.8], rtol=1e-7)
    assert pooled(hidden, None, Pooling())[1].tolist() == [0, 0, 0]
    assert pooled(hidden, 2, Pooling(normalizes=False))[0].tolist() == [3, 4]


def test_what_texts_begin_with_alike_is_the_query() -> None:
    texts = [np.array(ids, dtype=np.int32) for ids in ([1, 2, 3], [1, 2, 4, 5])]
    (prompts,) = EmbeddingPrompts.of(texts, "last")
    request = prompts.request(3)
    assert request.query_token_ids.tolist() == [1, 2]
    assert request.item_token_ids.tolist() == [3, 4, 5]
    assert request.item_lens.tolist() == [1, 2]
    assert request.num_read.tolist() == [1, 1]
    assert (request.embeds, request.id_lists.shape) == (True, (1, 0))
    assert prompts.num_prompt_tokens == 7


def test_many_texts_are_several_requests_of_what_all_begin_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pooling_module, "LAST_TOKENS", 4)
    texts = [np.array([1, 2, *range(10, 10 + n)], dtype=np.int32) for n in (1, 3, 2, 5, 1)]
    for index, text in enumerate(texts):
        text[2] = 20 + index
    parts = EmbeddingPrompts.of(texts, "last")
    assert [[len(item) for item in part.items] for part in parts] == [[1, 3], [2], [5], [1]]
    assert [part.query.tolist() for part in parts] == [[1, 2]] * 4


def test_means_read_few_texts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling_module, "MEAN_TOKENS", 6)
    texts = [np.arange(n, dtype=np.int32) for n in (2, 4, 1, 9, 3, 3, 1)]
    parts = EmbeddingPrompts.of(texts, "mean")
    assert [[len(item) for item in part.items] for part in parts] == [[2, 4], [1], [9], [3, 3], [1]]
    assert [part.num_prompt_tokens for part in parts] == [6, 1, 9, 6, 1]
    request = parts[0].request(3)
    assert request.num_read.tolist() == request.item_lens.tolist() == [2, 4]
    assert len(request.query_token_ids) == 0


def test_a_mean_is_summed_in_float64() -> None:
    """In float32 a thousand ones vanish beside 2 ** 26."""
    hidden = np.ones((1002, 1), dtype=np.float32)
    hidden[0], hidden[1001] = 2.0**26, -(2.0**26)
    (prompts,) = EmbeddingPrompts.of([np.zeros(1002, dtype=np.int32)], "mean")
    assert prompts.states(hidden).tolist() == [[np.float32(1000 / 1002)]]


@pytest.mark.parametrize("mode", ["mean", "last"])
@pytest.mark.parametrize("budget", [16, 512])  # texts are split over steps, or not
def test_vectors_equal_float64(
    mode: str, budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's float32 states through two layers, next to transformers and torch in float64."""
    monkeypatch.setattr(pooling_module, "MEAN_TOKENS", 50)
    peer = write_model("qwen3", tmp_path).double()
    kinds = ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
    folders = write_modules(tmp_path, kinds, **(MEAN if mode == "mean" else LAST))
    linears = [torch.nn.Linear(peer.config.hidden_size, 24), torch.nn.Linear(24, 10, bias=False)]
    names = ["torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"]
    for folder, linear, name in zip(folders[2:], linears, names, strict=False):
        write_dense(folder, linear, name)
    rng = np.random.default_rng(4)
    texts = [rng.integers(2, VOCAB, n).astype(np.int32) for n in (1, 70, 7, 33, 16, 2)]
    engine = build_engine(
        EngineConfig(
            model=ModelConfig(model=str(tmp_path), device="cpu", dtype="float32"),
            cache=CacheConfig(num_blocks=40),
            scheduler=SchedulerConfig(max_rows=4, max_step_tokens=budget),
        )
    )
    pooling, states = pooling_of(str(tmp_path)), []
    for prompts in EmbeddingPrompts.of(texts, pooling.mode):
        engine.score(b"", prompts.request(0))
        while engine.has_work:
            for _, output in engine.step():
                for scores in output.item_scores:
                    assert scores.hidden is not None
                    states.append(prompts.states(scores.hidden))
    got = pooled(np.concatenate(states), None, pooling)
    for own, ids in zip(got, texts, strict=True):
        with torch.inference_mode():
            hidden = peer.base_model(torch.from_numpy(ids).long()[None]).last_hidden_state[0]
            vector = hidden.mean(0) if mode == "mean" else hidden[-1]
            for linear, name in zip(linears, names, strict=True):
                vector = ACTIVATIONS[name](linear.double()(vector))
        # States of float32 forwards are within about 1e-5; layers of weights below 1 keep that.
        np.testing.assert_allclose(own, vector / vector.norm(), rtol=0, atol=2e-5)
