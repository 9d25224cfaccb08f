"""Structural tags: which texts each format takes, and which wishes are refused."""

from __future__ import annotations

from typing import Any

import pytest

from server.errors import ApiError
from server.structured.structural_tags import TagWriter
from tests.fakes import SPECIAL
from tests.server.structured.checks import checked, matches

JSON = {"type": "json_schema", "json_schema": {"type": "object", "additionalProperties": False}}
TAG = {"type": "tag", "begin": "<fn=a>", "content": JSON, "end": "</fn>"}
OTHER = {"type": "tag", "begin": "<fn=b>", "content": {"type": "any_text"}, "end": "</fn>"}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<fn"], "tags": [TAG, OTHER]}
ANY = {"type": "any_text"}


def word(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        (word('a"b'), ['a"b'], ["a", ""]),
        (JSON, ["{}"], ["[]"]),
        ({"type": "regex", "pattern": "[0-9]+/x"}, ["12/x"], ["/x"]),
        ({"type": "grammar", "grammar": 'root ::= "a" | "b"'}, ["a", "b"], ["c"]),
        (ANY, ["", "a\nb"], []),
        (TAG, ["<fn=a>{}</fn>"], ["<fn=a>{}", "x<fn=a>{}</fn>"]),
        (OTHER, ["<fn=b></fn>", "<fn=b>a<b>\n</fn>"], ["<fn=b>a", "<fn=b></fn>a</fn>"]),
        (
            {"type": "sequence", "elements": [word("a"), TAG, ANY]},
            ["a<fn=a>{}</fn>", "a<fn=a>{}</fn> rest"],
            ["<fn=a>{}</fn>"],
        ),
        ({"type": "or", "elements": [word("a"), TAG]}, ["a", "<fn=a>{}</fn>"], ["b"]),
        (
            TRIGGERED,
            ["", "free", "a <f", "a <fn=a>{}</fn> b <fn=b>x</fn>", "<fn=a>{}</fn><fn=a>{}</fn>"],
            ["a <fn", "a <fn=c>", "<fn=a>[]</fn>", "<fn=a>{}"],
        ),
        (
            {**TRIGGERED, "at_least_one": True},
            ["<fn=a>{}</fn>", "<fn=b>x</fn> rest <fn=a>{}</fn>"],
            ["", "free", "a <fn=a>{}</fn>"],
        ),
        (
            {**TRIGGERED, "stop_after_first": True},
            ["free", "a <fn=a>{}</fn>"],
            ["a <fn=a>{}</fn> b"],
        ),
        (
            {**TRIGGERED, "stop_after_first": True, "at_least_one": True},
            ["<fn=a>{}</fn>"],
            ["", "<fn=a>{}</fn>b"],
        ),
        (
            {"type": "tags_with_separator", "tags": [TAG, OTHER], "separator": ", "},
            ["", "<fn=a>{}</fn>", "<fn=a>{}</fn>, <fn=b>x</fn>"],
            ["<fn=a>{}</fn><fn=a>{}</fn>"],
        ),
        (
            {
                "type": "tags_with_separator",
                "tags": [TAG],
                "separator": ",",
                "at_least_one": True,
                "stop_after_first": True,
            },
            ["<fn=a>{}</fn>"],
            ["", "<fn=a>{}</fn>,<fn=a>{}</fn>"],
        ),
    ],
)
def test_what_each_format_takes(wanted: Any, good: list[str], bad: list[str]) -> None:
    grammar = checked("structural_tag", wanted)
    for text in good:
        assert matches(grammar, text), text
    for text in bad:
        assert not matches(grammar, text), text


def test_special_tokens_are_tokens_and_not_texts() -> None:
    tag = {**TAG, "begin": "<special>a", "end": "<special>"}
    grammar = checked(
        "structural_tag", {"type": "triggered_tags", "triggers": ["<special>"], "tags": [tag]}
    )
    assert matches(grammar, [*b"free ", SPECIAL, *b"a{}", SPECIAL, *b" more"])
    assert matches(grammar, "free <special>")  # letters, which the model may write
    assert not matches(grammar, [SPECIAL, *b"b"])


def test_of_special_tokens_that_begin_alike_the_longest_is_meant() -> None:
    ids = {"<tool": 1, "<tool_call>": 2, "<tool_call>x": 3}
    text = "<tool_call>y<tool_call>xz<tool>"
    [grammar] = TagWriter(ids, "").write({"type": "const_string", "value": text}, "here")
    assert grammar["lark_grammar"] == 'start: <[2]> "y" <[3]> "z" <[1]> ">"'


def test_white_space_is_bounded_within_tags() -> None:
    tag = {**TAG, "content": {"type": "json_schema", "json_schema": {"type": "array"}}}
    grammar = checked("structural_tag", tag)
    assert matches(grammar, "<fn=a>[1,\n  2]</fn>")
    assert not matches(grammar, "<fn=a>[1,\n\n\n2]</fn>")


@pytest.mark.parametrize(
    ("wanted", "param", "words"),
    [
        (5, "here", "an object"),
        ({"type": "unknown"}, "here.type", "const_string"),
        ({"type": "qwen_xml_parameter", "json_schema": {}}, "here.type", "one of"),
        ({"type": "const_string"}, "here.value", "is required"),
        ({"type": "const_string", "value": 5}, "here.value", "a string"),
        ({**ANY, "excludes": ["x"]}, "here.excludes", "cannot be expressed"),
        ({**TAG, "odd": 1}, "here.odd", "cannot be expressed"),
        ({"type": "sequence", "elements": []}, "here.elements", "not empty"),
        ({"type": "sequence", "elements": [ANY, TAG]}, "here.elements[0]", "must be last"),
        ({"type": "sequence", "elements": [TRIGGERED, TAG]}, "here.elements[0]", "be last"),
        ({**TRIGGERED, "triggers": ["<x"]}, "here.tags[0].begin", "here.triggers"),
        ({**TRIGGERED, "tags": [5]}, "here.tags[0]", "an object"),
        ({**OTHER, "end": ""}, "here.end", "not be empty"),
        (
            {**TAG, "content": {"type": "json_schema", "json_schema": 5}},
            *("here.content.json_schema", "JSON schema"),
        ),
        (
            {**TAG, "content": {"type": "json_schema", "json_schema": False}},
            *("here.content.json_schema", "no text"),
        ),
        ({**TAG, "content": {"type": "grammar", "grammar": "x"}}, "here.content.grammar", "GBNF"),
    ],
)
def test_refusals(wanted: Any, param: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        checked("structural_tag", wanted)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert words in caught.value.message


def test_too_deep_a_format() -> None:
    wanted: dict[str, Any] = word("a")
    for _ in range(100):
        wanted = {"type": "or", "elements": [wanted]}
    with pytest.raises(ApiError, match="levels deep"):
        checked("structural_tag", wanted)
