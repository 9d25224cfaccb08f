"""Logprobs that replies report: every form of them gives the same pairs, gaps are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from engine.audit.drawn import Reported
from server.audit.joined import UnreadableReplyError, joined
from server.audit.parameters import RefusedError, read_body
from server.audit.reported import reported_logprobs
from server.text.packed import packed
from tests.server.audit.files import Json

OUTPUT = [4, 5]
VALUES = [-0.5, -1.5]
TOPS = [[(3, -0.25), (4, -0.5)], [(5, -1.5), (6, -2.5)]]
LISTED: Json = {
    "tokens": ["d", "e"],
    "token_ids": OUTPUT,
    "token_logprobs": VALUES,
    "top_token_ids": [[token for token, _ in top] for top in TOPS],
    "top_logprobs": [{str(token): value for token, value in top} for top in TOPS],
    "mode": "raw_logprobs",
}
PACKED: Json = {
    "start": 0,
    "token_ids": packed(np.array(OUTPUT, dtype=np.int32)),
    "token_logprobs": packed(np.array(VALUES, dtype=np.float32)),
    "top_token_ids": packed(np.array(LISTED["top_token_ids"], dtype=np.int32)),
    "top_logprobs": packed(np.array([[v for _, v in top] for top in TOPS], dtype=np.float32)),
    "mode": "raw_logprobs",
}


def entry(token: int, value: float, tops: list[tuple[int, float]]) -> Json:
    listed = [{"token_id": own, "logprob": value} for own, value in tops]
    return {"token_id": token, "logprob": value, "top_logprobs": listed}


CHAT: Json = {
    "content": [entry(*each) for each in zip(OUTPUT, VALUES, TOPS, strict=True)],
    "tokens": [
        {"token_id": token, "logprob": value, "part": "content"}
        for token, value in zip(OUTPUT, VALUES, strict=True)
    ],
    "mode": "raw_logprobs",
}
AS_CHAT: Json = {
    **{"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 2},
}
ECHOED: Json = {
    key: [*([None, None] if key.startswith("to") else [8, 9]), *value]
    for key, value in LISTED.items()
    if isinstance(value, list)
}


def read(shown: Any, body: Json | None = None, **choice: Any) -> list[Reported] | None:
    reply = joined({"choices": [{"logprobs": shown, **choice}]})
    given = body or {}
    asked = read_body({**({} if "messages" in given else {"prompt": "x", "logprobs": 2}), **given})
    return reported_logprobs(asked, reply["choices"][0], OUTPUT, "raw_logprobs")


@pytest.mark.parametrize(
    ("shown", "body"),
    [(LISTED, {}), (PACKED, {}), (CHAT, AS_CHAT), (ECHOED, {"echo": True})],
)
def test_every_form_has_the_drawn_tokens_and_the_top_ones(shown: Json, body: Json) -> None:
    rows = read(shown, body)
    assert rows is not None
    drawn = zip(OUTPUT, VALUES, TOPS, strict=True)
    wanted = [{(token, value), *top} for token, value, top in drawn]
    assert [set(row) for row in rows] == wanted


def test_explicit_ids_are_added() -> None:
    explicit = {"token_ids": [1, 2], "logprobs": [[-7.0, -8.0], [-9.0, -math.inf]]}
    rows = read(PACKED, logprob_token_ids={**explicit, "logprobs": packed_rows(explicit)})
    assert rows is not None
    assert [row[-2:] for row in rows] == [[(1, -7.0), (2, -8.0)], [(1, -9.0), (2, -math.inf)]]
    asked = {"logprobs": None, "logprob_token_ids": [1, 2]}
    alone = read(None, asked, logprob_token_ids=explicit)
    assert alone == [row[-2:] for row in rows]
    short = {**explicit, "logprobs": [[-7.0, -8.0]]}
    for given, words in (
        (short, "logprob_token_ids of 1 for 2 tokens"),
        ({**explicit, "token_ids": [1, 3]}, "are not those that were asked for"),
        (None, "no logprobs, which were asked for"),
    ):
        with pytest.raises(RefusedError, match=words):
            read(None, asked, logprob_token_ids=given)


def packed_rows(explicit: Json) -> Json:
    return packed(np.array(explicit["logprobs"], dtype=np.float32))


def test_a_drawn_token_is_compared_whatever_id_stands_beside_its_value() -> None:
    rows = read({**LISTED, "token_ids": [4, 7]})
    assert rows is not None
    assert {(5, -1.5), (7, -1.5)} <= set(rows[1])


def test_chats_with_tokens_that_lie_in_the_content_in_part_have_those_of_tokens() -> None:
    parts = [{**CHAT["tokens"][0], "part": "markup"}, CHAT["tokens"][1]]
    rows = read({**CHAT, "tokens": parts}, AS_CHAT)
    assert rows == [[(4, -0.5), (4, -0.5)], [(5, -1.5), (5, -1.5)]]


@pytest.mark.parametrize(
    ("shown", "body", "words"),
    [
        (None, {}, "no logprobs, which were asked for"),
        (None, {"logprobs": 0}, "no logprobs, which were asked for"),
        ({**LISTED, "token_logprobs": [-0.5]}, {}, "it has 1 logprobs for 2 tokens"),
        ({**LISTED, "token_ids": [4]}, {}, "logprobs for 2 tokens"),
        ({**LISTED, "top_token_ids": None}, {}, "it has 0 top tokens where 2 were asked for"),
        (LISTED, {"logprobs": 3}, "it has 2 top tokens where 3 were asked for"),
        ({**CHAT, "content": CHAT["content"][:1]}, AS_CHAT, "it has 1 entries for 2 tokens"),
        (CHAT, {**AS_CHAT, "top_logprobs": 3}, "it has 2 top tokens where 3 were asked for"),
        (
            {**PACKED, "token_logprobs": packed(np.array(VALUES, dtype=np.float32), "bfloat16")},
            *({}, "are rounded, which was not asked for"),
        ),
        (LISTED, {"logprobs_mode": "raw_logits"}, "are raw_logprobs, and raw_logits were asked"),
        (
            {**PACKED, "token_logprobs": packed(np.array(VALUES, dtype="<f8"))},
            {"logprobs_mode": "processed_logprobs"},
            "are raw_logprobs, and processed",
        ),
    ],
)
def test_what_was_asked_for_and_is_not_there_is_refused(shown: Any, body: Json, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        read(shown, body)


def test_values_that_are_no_numbers_are_refused() -> None:
    nan = {"dtype": "<f4", "shape": [2], "data": "AADAfwAAgL8="}  # NaN, -1
    with pytest.raises(RefusedError, match="NaN or Infinity"):
        read({**PACKED, "token_logprobs": nan})
    with pytest.raises(TypeError):
        read({**LISTED, "token_logprobs": [-0.5, None]})
    with pytest.raises(UnreadableReplyError, match="packed array is malformed"):
        read({**PACKED, "token_logprobs": {**nan, "shape": [3]}})


@pytest.mark.parametrize(
    ("shown", "body"),
    [
        (None, {"logprobs": None}),
        (None, {**AS_CHAT, "logprobs": False, "top_logprobs": None}),
        ({**LISTED, "mode": "raw_logits"}, {"logprobs_mode": "raw_logits"}),
        (
            {**PACKED, "token_logprobs": packed(np.array(VALUES, dtype=np.float32), "float16")},
            {"logprobs_format": "packed", "logprobs_dtype": "float16"},
        ),
    ],
)
def test_other_modes_and_rounded_values_are_passed_over(shown: Any, body: Json) -> None:
    assert read(shown, body) is None
