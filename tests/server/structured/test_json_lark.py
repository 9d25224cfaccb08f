"""Lark grammars within JSON strings take the JSON of just those texts that the grammars take."""

from __future__ import annotations

import json
import re

import pytest

from server.structured.json_lark import within_json
from server.structured.json_regex import NotExpressibleError
from tests.server.structured.checks import checked, matches
from tests.server.structured.patches import GOOD, PATCH

SUM = r"""
start: expr
?expr: term (" + " term)*
term: INT | "(" expr ")"
%import common (INT)
"""
RECURSIVE = 'start: "a" start "b" | "c\\n"'
REPEATED = 'start: PAIR{2,3} ["z"]\nPAIR: "x"i "\\n" | "0".."9"'
TEXTS = [
    GOOD,
    GOOD.removesuffix("\n"),
    GOOD.replace("Begin", "begin"),
    f"{GOOD}x",
    "*** Begin Patch\n*** End Patch",
    "*** Begin Patch\n*** Delete File: \n*** End Patch",
    "*** Begin Patch\n*** Delete File: \\\n*** End Patch",
    "1 + (2 + 30)",
    "(1",
    "1+2",
    "aac\nbb",
    "aac\nb",
    "c\n",
    "x\nX\n",
    "x\n4z",
    "x\n4zz",
    "444",
    "4444",
]


@pytest.mark.parametrize("lark", [PATCH, SUM, RECURSIVE, REPEATED])
def test_the_same_texts(lark: str) -> None:
    plain, within = checked("grammar", lark), checked("grammar", within_json(lark))
    taken = [text for text in TEXTS if matches(plain, text)]
    assert taken
    for text in TEXTS:
        raw = json.dumps(text, ensure_ascii=False)[1:-1]
        assert matches(within, raw) == (text in taken), text


@pytest.mark.parametrize(
    ("lark", "words"),
    [
        ("start: a\na: a /[^x]/ | /./", "leads to itself"),
        ('start: "a"\n%ignore /\\s/', "%ignore"),
        ('start: "a"\n%import other.X', "%import"),
        ("start: X\n%import common.NO", "common.NO"),
        ("start: %json {}", "%json"),
        ("start: <[3]>", "<"),
        ('start[temperature=1]: "a"', "temperature"),
        ("start: A\nA.2: /a/", "A.2"),
        ('begin: "a"', "without the rule start"),
        (r'start: "a\xzz"', "literal"),
        ("start: /a(?=b)/", "assert"),
    ],
)
def test_what_cannot_be_said(lark: str, words: str) -> None:
    with pytest.raises(NotExpressibleError, match=re.escape(words)):
        within_json(lark)


def test_a_recursive_grammar_without_such_classes_may_ignore_space() -> None:
    made = checked("grammar", within_json('start: "a" [start]\n%ignore " "'))
    assert matches(made, "a a a")
