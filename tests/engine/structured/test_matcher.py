"""Where a choice's grammar begins, and which of its tokens belong to it."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher

from engine.request import Grammar
from engine.structured.matcher import ChoiceMatcher, error_of
from tests.engine.structured.constrained import TOKENIZER, ll_tokenizer, of_regex

SOURCE = of_regex("[0-9]{2}")
ONE, TWO, LETTER = (TOKENIZER.encode(text)[0] for text in ("1", "2", "a"))


def matcher(*after: int) -> ChoiceMatcher:
    return ChoiceMatcher(
        Grammar(source=SOURCE, after=after), LLMatcher(ll_tokenizer(), SOURCE, log_level=0)
    )


def test_a_grammar_without_a_marker_begins_at_the_first_token() -> None:
    state = matcher()
    assert state.start_in([]) == 0
    assert state.enter([ONE, TWO]) == [ONE, TWO]


@pytest.mark.parametrize(
    ("after", "steps", "wanted"),
    [
        ((7,), [[5, 6], [7], [ONE]], [[], [], [ONE]]),
        ((7,), [[5, 7, ONE, 7]], [[ONE, 7]]),  # only the first occurrence counts
        ((7, 8), [[7], [8, ONE]], [[], [ONE]]),  # over two steps
        ((7, 7, 8), [[7, 7], [7], [8], [ONE]], [[], [], [], [ONE]]),  # begins anew in itself
        ((7, 8), [[7, 6, 8], [8], [7, 8]], [[], [], []]),
    ],
)
def test_a_grammar_begins_behind_the_first_occurrence_of_its_marker(
    after: tuple[int, ...], steps: list[list[int]], wanted: list[list[int]]
) -> None:
    state = matcher(*after)
    assert [state.enter(step) for step in steps] == wanted


def test_where_drafts_would_begin_it_is_asked_without_being_noted() -> None:
    state = matcher(7, 8)
    state.enter([7])
    assert state.start_in([5, 6]) is None
    assert state.start_in([8]) == 1
    assert state.start_in([8, ONE]) == 1
    assert state.start_in([5, 7, 8, ONE]) == 3
    assert state.enter([6]) == []
    assert state.start_in([8]) is None, "the 7 no longer stands right before it"


def test_choices_of_one_compiled_grammar_go_their_own_ways() -> None:
    compiled = LLMatcher(ll_tokenizer(), SOURCE, log_level=0)
    first, second = (ChoiceMatcher(Grammar(source=SOURCE), compiled) for _ in range(2))
    assert first.matcher.consume_token(ONE)
    assert first.matcher.consume_token(TWO)
    assert not first.matcher.consume_token(ONE)
    assert second.matcher.validate_tokens([ONE, TWO]) == 2


def test_an_error_is_one_line() -> None:
    state = matcher()
    assert not state.matcher.consume_token(LETTER)
    assert "doesn't satisfy the grammar" in error_of(state.matcher)
    assert "\n" not in error_of(state.matcher)
    assert error_of(matcher().matcher) == "llguidance does not say why"
