"""Expressions within JSON strings take the JSON of just those texts that the expressions take."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.structured.json_regex import (
    SHORT,
    JsonRegex,
    NotExpressibleError,
    escaped,
    without_anchors,
)
from tests.server.structured.checks import checked, matches

PATTERNS = [
    r"(.+)",
    r"a.b",
    r"[^\d]+",
    r'["\\]*x?',
    r"\s\S",
    r"(?:ab|\n\t){1,3}",
    r"[a-z\n]{2,}?",
    r"[^a\x00-\x08]",
    r'x"\\y|\x01',
    r"\w*é[à-ü]?",
    r"[\s\S]",
    r"/[/\x2f]",
]
CHARS = 'ab \n\t\r"\\/\x00\x01\x1f\x7f0é🙂xyà'
FLAGGED = [("ab\n[a-c]", "i"), (".x", "s"), ('"É', "i")]


def takes(pattern: str, flags: str, text: str) -> bool:
    made = checked("regex", JsonRegex(pattern, flags).pattern)
    return matches(made, json.dumps(text, ensure_ascii=False)[1:-1])


@given(pattern=st.sampled_from(PATTERNS), text=st.text(CHARS, max_size=5))
def test_the_same_texts(pattern: str, text: str) -> None:
    assert takes(pattern, "", text) == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_some_text_is_taken_of_each(pattern: str) -> None:
    """Else the test before could not fail."""
    texts = ["a", 'a"b', "1 ", '"', "\n\t", "a\n", 'x"\\y', "xé", " a", "//", "x", "é"]
    assert any(takes(pattern, "", text) for text in texts)


@pytest.mark.parametrize(("pattern", "flags"), FLAGGED)
def test_flags(pattern: str, flags: str) -> None:
    bits = re.IGNORECASE if flags == "i" else re.DOTALL
    for text in ("AB\nC", "ab\nc", "AB\\nC", "\nx", "ax", "\nX", '"É', '"é', '\\"é'):
        assert takes(pattern, flags, text) == bool(re.fullmatch(pattern, text, bits)), text


@pytest.mark.parametrize(("pattern", "flags"), FLAGGED)
def test_flags_at_the_beginning_of_an_expression_are_those_beside_it(
    pattern: str, flags: str
) -> None:
    assert JsonRegex(f"(?{flags}){pattern}").pattern == JsonRegex(pattern, flags).pattern


def test_escapes_are_those_of_json() -> None:
    text = "".join(map(chr, range(0x80))) + "é🙂"
    assert json.loads(f'"{escaped(text)}"') == text
    assert escaped(text) == json.dumps(text, ensure_ascii=False)[1:-1]
    assert {f"\\{mark}" for mark in SHORT.values()} < set(re.findall(r"\\.", escaped(text)))


@pytest.mark.parametrize(
    ("pattern", "flags", "words"),
    [
        (r"a$b", "", "at of a"),
        (r"(?=a)b", "", "assert"),
        (r"(a)\1", "", "groupref"),
        (r"(?i:a)", "", "flags"),
        (r"a(", "", "missing )"),
        (r"a", "x", "flag x"),
    ],
)
def test_what_cannot_be_said(pattern: str, flags: str, words: str) -> None:
    with pytest.raises(NotExpressibleError, match=re.escape(words)):
        JsonRegex(pattern, flags)


def test_anchors_at_the_ends_mean_nothing() -> None:
    assert without_anchors("^a$") == "a"
    assert without_anchors(r"a\$") == r"a\$"
