"""Parts of tokens: those that lie in one stretch, and those that the edges of markers cut."""

from __future__ import annotations

import pytest

from server.conversation.parsing.output import Span
from server.conversation.parsing.tokens import TokenParts, make_vocabulary

RAW = [b".</think>", b"</think>Hi", b"a</think>b", b"\x99\x82</", b"x</\xf0\x9f", b"", b"word"]
TEXTS = [raw.decode(errors="replace") for raw in RAW]
WORDS = make_vocabulary(TEXTS, RAW, {})


def test_lengths() -> None:
    """Characters that have bytes in each, of which the first and the last may be cut."""
    assert WORDS.lengths == [9, 10, 10, 3, 4, 0, 4]
    assert WORDS.silent == {5}


@pytest.mark.parametrize(
    ("token_id", "spans", "part", "in_content"),
    [
        (0, [(1, "reasoning"), (9, "markup")], "reasoning", None),
        (0, [(1, "content"), (9, "markup")], "content", b"."),
        (1, [(8, "markup"), (10, "content")], "content", b"Hi"),
        (1, [(8, "markup"), (10, "tool")], "tool", None),
        (2, [(1, "reasoning"), (9, "markup"), (10, "content")], "reasoning", b"b"),
        (3, [(1, "content"), (3, "markup")], "content", b"\x99\x82"),
        (4, [(3, "markup"), (4, "content")], "content", b"\xf0\x9f"),
        (5, [(4, "content")], "markup", None),
        (6, [(9, "content")], "content", None),
    ],
)
def test_one_token(token_id: int, spans: list[Span], part: str, in_content: bytes | None) -> None:
    tokens = TokenParts(WORDS, spans)
    tokens.push([token_id], [0])
    parts, cuts = tokens.decide(spans[-1][0], True)
    assert parts == [part]
    assert cuts == ({} if in_content is None else {0: in_content})
    assert tokens.num_reasoning == (part == "reasoning")


def test_a_token_waits_for_all_of_its_text() -> None:
    spans: list[Span] = [(4, "content")]
    tokens = TokenParts(WORDS, spans)
    tokens.push([6, 6], [0, 4])
    assert tokens.decide(4, False) == (["content"], {})
    assert tokens.pending
    assert tokens.decide(7, False) == ([], {})
    spans.append((8, "markup"))
    assert tokens.decide(8, False) == (["markup"], {})
    assert not tokens.pending


def test_the_end_decides_what_is_left() -> None:
    tokens = TokenParts(WORDS, [(2, "content")])
    tokens.push([6, 6], [0, 4])
    assert tokens.decide(2, True) == (["content", "markup"], {})  # whole, although it was cut
