"""Scoring bodies: items and labels as arrays, empty items among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from server.endpoints.scoring.schema import ScoreRequest, id_lists
from server.errors import ApiError
from server.schema.base import validate
from server.schema.ids import IdLists

BODY: dict[str, Any] = {"query": "q", "items": ["a"], "label_token_ids": [1]}


def test_lists_of_ids_are_two_arrays() -> None:
    made = id_lists([[1, 2], [], [3]])
    assert (made.token_ids.tolist(), made.lens.tolist()) == ([1, 2, 3], [2, 0, 1])
    assert made.token_ids.dtype == made.lens.dtype == np.int32
    assert id_lists([[]]).lens.tolist() == [0]


@pytest.mark.parametrize("value", [[[1], "a"], [[1], [-1]], [[1], [True]], [[1], [1.5]]])
def test_the_odd_list_is_named(value: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"at \[1\]"):
        id_lists(value)


def test_items_may_be_empty() -> None:
    assert validate(ScoreRequest, {**BODY, "items": ["", "b"]}).items == ["", "b"]
    assert validate(ScoreRequest, {**BODY, "items": ""}).items == [""]
    items = validate(ScoreRequest, {**BODY, "items": [[], [5]]}).items
    assert isinstance(items, IdLists)
    assert items.lens.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("field", "value"),
    [("items", []), ("label_token_ids", [[1], []]), ("label_token_ids", []), ("query", [])],
)
def test_other_lists_may_not(field: str, value: Any) -> None:
    with pytest.raises(ApiError, match="empty") as caught:
        validate(ScoreRequest, {**BODY, field: value})
    assert caught.value.param == field


def test_labels_of_one_token_are_lists_too() -> None:
    assert validate(ScoreRequest, {**BODY, "label_token_ids": [1, [2, 3]]}).label_token_ids == [
        [1],
        [2, 3],
    ]
