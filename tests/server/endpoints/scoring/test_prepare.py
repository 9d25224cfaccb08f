"""Scoring requests made ready: what the engine gets, what is billed and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from server.endpoints.scoring.prepare import ONE_LABEL, PreparedScoring, prepare_scoring
from server.endpoints.scoring.schema import ScoreRequest
from server.errors import ApiError
from server.schema.base import validate
from tests.fakes import FakeEngine, byte_tokenizer
from tests.server.served import served_model

ENGINE, TOKENIZER = FakeEngine(max_model_len=16), byte_tokenizer()
SERVED = served_model(ENGINE, TOKENIZER)


async def prepare(*, softmax: bool = False, **body: Any) -> PreparedScoring:
    known = {"query": "abc", "items": ["de", "f"], "label_token_ids": [70, 71], **body}
    asked = validate(ScoreRequest, known)
    return await prepare_scoring(asked, SERVED, "score-theirs", softmax=softmax)


async def refused(**body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await prepare(**body)
    assert caught.value.status == 400
    return caught.value


def items_of(prepared: PreparedScoring) -> list[bytes]:
    tokens, items = prepared.spec.request(1).item_token_ids.tolist(), []
    for length in prepared.spec.request(1).item_lens.tolist():
        items.append(bytes(tokens[:length]))
        tokens = tokens[length:]
    assert tokens == []
    return items


async def test_the_query_is_shared() -> None:
    prepared = await prepare()
    assert prepared.spec.request(1).query_token_ids.tolist() == list(b"abc")
    assert items_of(prepared) == [b"de", b"f"]
    assert prepared.spec.request(1).num_read.tolist() == [1, 1]
    assert prepared.spec.request(1).id_lists.tolist() == [[70, 71]]
    assert prepared.num_prompt_tokens == 6
    assert (prepared.reply_id, prepared.model) == ("score-theirs", "m")


async def test_the_query_is_computed_for_each_item_before_it() -> None:
    prepared = await prepare(item_first=True)
    assert prepared.spec.request(1).query_token_ids.tolist() == []
    assert items_of(prepared) == [b"deabc", b"fabc"]
    assert prepared.num_prompt_tokens == 9


async def test_each_branch_of_labels_follows_each_item() -> None:
    labels = [[1, 2, 3], [1, 5], [4]]
    prepared = await prepare(label_token_ids=labels)
    request = prepared.spec.request(1)
    assert items_of(prepared) == [b"de", b"f"]
    assert request.branches is not None
    assert request.branches.counts.tolist() == [1, 1]
    assert request.branches.token_ids.tolist() == [1, 2, 1, 2]
    assert request.num_read.tolist() == [3, 3]
    assert prepared.num_prompt_tokens == 6, "labels are not billed"


@pytest.mark.parametrize("items", [["", "f"], [[], [ord("f")]]])
async def test_with_an_empty_item_all_begin_with_the_query_s_end(items: Any) -> None:
    prepared = await prepare(items=items)
    assert prepared.spec.request(1).query_token_ids.tolist() == list(b"ab")
    assert items_of(prepared) == [b"c", b"cf"]
    assert prepared.num_prompt_tokens == 4
    first = await prepare(items=items, item_first=True)
    assert items_of(first) == [b"abc", b"fabc"]


async def test_a_query_of_one_token_and_no_item() -> None:
    prepared = await prepare(query=[7], items=[""])
    assert (len(prepared.spec.request(1).query_token_ids), items_of(prepared)) == (0, [b"\x07"])


async def test_softmax_is_the_route_s_unless_asked() -> None:
    for default in (False, True):
        assert (await prepare(softmax=default)).softmax is default
        assert (await prepare(softmax=default, apply_softmax=not default)).softmax is not default


async def test_one_label_under_softmax_is_warned_of() -> None:
    assert (await prepare(softmax=True, label_token_ids=[70])).warnings == [ONE_LABEL]
    assert (await prepare(softmax=True)).warnings == []
    assert (await prepare(label_token_ids=[70])).warnings == []


async def test_no_labels_are_blamed_on_both_fields() -> None:
    for body, got in (({"label_token_ids": None}, "neither"), ({"labels": ["a"]}, "both")):
        error = await refused(**body)
        assert error.param == "labels, label_token_ids"
        assert error.message == f"give either labels or label_token_ids, got {got}"


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"query": [1] * 16}, "query", "16 tokens before any item"),
        ({"query": [1] * 17, "items": [[]]}, "query", "17 tokens before any item"),
        ({"items": [[2], [2] * 14]}, "items", "items[1] of 17 tokens together"),
        ({"query": [1] * 14, "label_token_ids": [[1, 2], 3]}, "items", "1 of a label's among them"),
        ({"items": [[264]]}, "items", "id 264"),
        ({"label_token_ids": [264]}, "label_token_ids", "id 264"),
        ({"priority": 1}, "priority", "--scheduling-policy"),
    ],
)
async def test_refused(body: dict[str, Any], param: str, words: str) -> None:
    error = await refused(**body)
    assert error.param == param
    assert words in error.message
