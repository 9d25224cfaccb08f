"""Schemas of values that equal none of some given ones."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest

from server.structured.unequal import MAX_NUMBERS, in_pattern, other_strings, unequal
from tests.server.structured.values import STRINGS, VALUES


@pytest.mark.parametrize(
    "values",
    [
        [None],
        [True],
        [1],
        [1, 1.5, -1],
        ["x", "xy", ""],
        [[]],
        [[1], [1, 2], [[1]]],
        [{}],
        [None, True, False, 2, "y", [None]],
    ],
    ids=repr,
)
def test_all_others_fit(values: list[Any]) -> None:
    others = jsonschema.Draft202012Validator(unequal(values))
    oracle = jsonschema.Draft202012Validator({"not": {"enum": values}})
    for value in VALUES:
        assert others.is_valid(value) == oracle.is_valid(value), value


def test_what_cannot_be_said() -> None:
    assert unequal([{"a": 1}]) is None
    assert unequal([[{"a": 1}]]) is None
    assert unequal([float("inf")]) is None
    assert unequal(list(range(MAX_NUMBERS + 1))) is None


@pytest.mark.parametrize("words", [[""], ["x"], ["x", "xyz"], ["", "x\n", '"', "[^-]", "\u20ac"]])
def test_other_strings(words: list[str]) -> None:
    # Python writes a character by its number in another way.
    pattern = re.sub(r"\\x\{(\w+)\}", lambda m: f"\\U{int(m[1], 16):08x}", other_strings(words))
    for text in {*STRINGS, *words, "[", "^", "x-"}:
        assert (re.fullmatch(pattern[1:-1], text) is None) == (text in words), text


def test_a_text_in_a_pattern() -> None:
    assert in_pattern("aZ9") == "aZ9"
    assert in_pattern("-]") == r"\x{2d}\x{5d}"
