"""Embeddings of hidden states, and what a model's folder says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.config import Pooling
from server.scoring.pooling import EmbeddingPrompts, pooled, pooling_of


def folder(path: Path, kinds: list[str], **pooling: Any) -> Path:
    modules = []
    for index, kind in enumerate(kinds):
        own = "" if index == 0 else f"{index}_{kind}"
        modules.append({"idx": index, "path": own, "type": f"sentence_transformers.models.{kind}"})
        if kind == "Pooling":
            (path / own).mkdir()
            (path / own / "config.json").write_text(
                json.dumps({"word_embedding_dimension": 4, **pooling})
            )
    (path / "modules.json").write_text(json.dumps(modules))
    return path


def test_a_folder_that_says_nothing(tmp_path: Path) -> None:
    assert pooling_of(str(tmp_path)) == Pooling(normalizes=True)
    assert pooling_of("some/model") == Pooling(normalizes=True)


@pytest.mark.parametrize("normalizes", [True, False])
def test_the_last_token_s(normalizes: bool, tmp_path: Path) -> None:
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalizes else [])]
    made = folder(tmp_path, kinds, pooling_mode_lasttoken=True, pooling_mode_mean_tokens=False)
    assert pooling_of(str(made)) == Pooling(normalizes=normalizes)


def test_what_is_not_served_is_named(tmp_path: Path) -> None:
    made = folder(tmp_path, ["Transformer", "Pooling"], pooling_mode_mean_tokens=True)
    assert "mean_tokens" in (pooling_of(str(made)).refusal or "")
    (tmp_path / "other").mkdir()
    dense = folder(
        tmp_path / "other", ["Transformer", "Pooling", "Dense"], pooling_mode_lasttoken=True
    )
    assert "Dense" in (pooling_of(str(dense)).refusal or "")


def test_vectors_are_cut_and_normalized() -> None:
    hidden = np.array([[3.0, 4.0, 12.0], [0.0, 0.0, 0.0]], dtype=np.float32)
    whole = pooled(hidden, None, Pooling())
    np.testing.assert_allclose(whole[0], np.array([3, 4, 12]) / 13, rtol=1e-7)
    np.testing.assert_allclose(pooled(hidden, 2, Pooling())[0], [0.6, 0.8], rtol=1e-7)
    assert pooled(hidden, None, Pooling())[1].tolist() == [0, 0, 0]
    assert pooled(hidden, 2, Pooling(normalizes=False))[0].tolist() == [3, 4]


def test_what_texts_begin_with_alike_is_the_query() -> None:
    texts = [np.array(ids, dtype=np.int32) for ids in ([1, 2, 3], [1, 2, 4, 5])]
    request = EmbeddingPrompts.of(texts).request(3)
    assert request.query_token_ids.tolist() == [1, 2]
    assert request.item_token_ids.tolist() == [3, 4, 5]
    assert request.item_lens.tolist() == [1, 2]
    assert (request.embeds, request.id_lists.shape) == (True, (1, 0))
