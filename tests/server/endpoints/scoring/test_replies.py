"""Scores as replies: both shapes, as JSON and packed, of one and the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from engine.messages.step_output import Finish, ItemScores
from server.endpoints.scoring.prepare import PreparedScoring
from server.endpoints.scoring.replies import generative_scoring_reply, score_reply
from server.errors import ApiError
from server.schema.ids import IdLists
from server.scoring.labels import LabelTree
from server.scoring.spec import ScoringSpec
from server.text.packed import unpacked

TREE = LabelTree.of([(5,), (6,)])
P = np.array([[0.5, 0.25], [0.125, 0.125]])
NONE = np.zeros(0, dtype=np.int32)


def prepared(**changes: Any) -> PreparedScoring:
    items = IdLists(np.array([3, 4], dtype=np.int32), np.array([1, 1], dtype=np.int32))
    tree = changes.pop("tree", TREE)
    neutral: dict[str, Any] = {"softmax": False, "packed": False, "warnings": []}
    return PreparedScoring(
        reply_id="score-x",
        created=1,
        model="m",
        spec=ScoringSpec(NONE, items, [tree], np.zeros(2, dtype=np.int64)),
        num_prompt_tokens=7,
        **{**neutral, **changes},
    )


def scores(p: np.ndarray) -> ItemScores:
    with np.errstate(divide="ignore"):
        values, others = np.log(p), np.log(1 - p.sum(axis=1))
    return ItemScores(
        handle=1,
        finish=Finish.LENGTH,
        num_cached=3,
        values=values.astype(np.float32),
        others=others.astype(np.float32),
        best_ids=np.zeros(len(others), dtype=np.int32),
        best=others.astype(np.float32),
        log_sums=others.astype(np.float64),
    )


def test_score() -> None:
    reply = orjson.loads(score_reply(prepared(), scores(P)))
    assert reply.pop("usage") == {
        "prompt_tokens": 7,
        "completion_tokens": 0,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert np.array(reply.pop("scores")) == pytest.approx(P, rel=1e-7)  # float32 logprobs
    assert np.exp(reply.pop("label_logprobs")) == pytest.approx(P, rel=1e-6)
    assert np.exp(reply.pop("other_logprob")) == pytest.approx([0.25, 0.75], rel=1e-6)
    assert reply == {"id": "score-x", "created": 1, "model": "m", "object": "scoring"}


def test_generative_scoring_is_of_the_first_label() -> None:
    reply = orjson.loads(generative_scoring_reply(prepared(), scores(P)))
    assert reply["object"] == "list"
    assert [item["index"] for item in reply["data"]] == [0, 1]
    assert [item["score"] for item in reply["data"]] == pytest.approx(P[:, 0], rel=1e-7)
    assert np.exp([item["label_logprobs"] for item in reply["data"]]) == pytest.approx(P, rel=1e-6)


def test_softmax_shares_the_labels_mass() -> None:
    reply = orjson.loads(score_reply(prepared(softmax=True), scores(P)))
    assert np.array(reply["scores"]) == pytest.approx(np.array([[2 / 3, 1 / 3], [0.5, 0.5]]))
    assert np.exp(reply["label_logprobs"]) == pytest.approx(P, rel=1e-6)  # not shared


def test_impossible_labels() -> None:
    """-inf is -9999 and no mass to share is shared as none; NaN never leaves."""
    nothing = np.array([[0.0, 0.0], [0.0, 0.5]])
    reply = orjson.loads(score_reply(prepared(softmax=True), scores(nothing)))
    assert reply["scores"] == [[0.0, 0.0], [0.0, 1.0]]
    assert reply["label_logprobs"][0] == [-9999.0, -9999.0]
    broken = scores(P)
    broken.values[0, 0] = np.nan
    for write in (score_reply, generative_scoring_reply):
        with pytest.raises(ApiError, match="NaN"):
            write(prepared(), broken)


@pytest.mark.parametrize("softmax", [False, True])
def test_packed_holds_what_json_holds(softmax: bool) -> None:
    for write in (score_reply, generative_scoring_reply):
        plain = orjson.loads(write(prepared(softmax=softmax), scores(P)))
        reply = orjson.loads(write(prepared(softmax=softmax, packed=True), scores(P)))
        if write is generative_scoring_reply:
            assert reply["data"] == []
            plain["scores"] = [item["score"] for item in plain["data"]]
            for name in ("label_logprobs", "other_logprob"):
                plain[name] = [item[name] for item in plain["data"]]
        for name, kind in (
            ("scores", "<f8"),
            ("label_logprobs", "<f4"),
            ("other_logprob", "<f4"),
        ):
            array = unpacked(reply[name])
            assert array.dtype == kind
            assert (array == np.array(plain[name], dtype=kind)).all()


def test_warnings_are_there_where_there_are_any() -> None:
    for packed in (False, True):
        for write in (score_reply, generative_scoring_reply):
            warned = orjson.loads(write(prepared(warnings=["why"], packed=packed), scores(P)))
            assert warned["warnings"] == ["why"]
            assert "warnings" not in orjson.loads(write(prepared(packed=packed), scores(P)))
