"""Which masks a choice's next positions want, against a reading of its whole text so far."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from llguidance import LLMatcher

from engine.messages.request import Grammar, ThinkingBudget
from engine.structured.matcher import ChoiceMatcher, WantedMasks, error_of
from tests.engine.structured.constrained import TOKENIZER, ll_tokenizer, of_regex

SOURCE = of_regex("[0-9]{2}")
ONE, TWO, LETTER = (TOKENIZER.encode(text)[0] for text in ("1", "2", "a"))


def matcher(
    *after: int, unless_opened: tuple[int, ...] = (), budget: ThinkingBudget | None = None
) -> ChoiceMatcher:
    grammar = Grammar(source=SOURCE, after=after, unless_opened=unless_opened)
    return ChoiceMatcher(grammar, LLMatcher(ll_tokenizer(), SOURCE, log_level=0), budget)


def waiting(source: str) -> ChoiceMatcher:
    """A choice that may open with 5, and whose grammar then begins after a 7."""
    grammar = Grammar(source=source, after=(7,), unless_opened=(5,))
    return ChoiceMatcher(grammar, LLMatcher(ll_tokenizer(), source, log_level=0))


def begins(wanted: WantedMasks) -> list[tuple[int, int]]:
    """Where runs begin and how many positions they have."""
    return [(run.first, 1 + len(run.drafts)) for run in wanted.runs]


def test_a_grammar_without_a_marker_begins_at_the_first_token() -> None:
    state = matcher()
    assert begins(state.masks_in([])) == [(0, 1)]
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
    assert begins(state.masks_in([5, 6])) == []
    assert begins(state.masks_in([8])) == [(1, 1)]
    assert begins(state.masks_in([8, ONE])) == [(1, 2)]
    assert begins(state.masks_in([5, 7, 8, ONE])) == [(3, 2)]
    assert state.enter([6]) == []
    assert begins(state.masks_in([8])) == [], "the 7 is no longer right before it"


def test_a_text_may_not_end_before_its_grammar_begins() -> None:
    state = waiting(SOURCE)
    assert state.masks_in([5, 6, 7, ONE]).unended == [1, 2]
    state.enter([5])
    assert state.masks_in([]).unended == [0]
    state.enter([7])
    assert state.masks_in([ONE]).unended == []


def test_it_may_where_the_grammar_allows_an_empty_text() -> None:
    assert waiting(of_regex("[0-9]*")).masks_in([5, 6, 7]).unended == []


class TestOpening:
    """A choice that may open with a marker, or begin with its grammar."""

    def test_either_may_come_first(self) -> None:
        wanted = matcher(7, unless_opened=(5,)).masks_in([])
        assert begins(wanted) == [(0, 1)]
        assert wanted.also == {0: 5}

    def test_a_first_token_of_the_grammar_s_begins_it(self) -> None:
        state = matcher(7, unless_opened=(5,))
        assert state.enter([ONE]) == [ONE]
        assert state.masks_in([]).also == {}
        assert begins(state.masks_in([TWO, 7])) == [(0, 3)]

    def test_behind_the_marker_all_is_free_up_to_the_other(self) -> None:
        state = matcher(7, unless_opened=(5,))
        wanted = state.masks_in([5, 7, ONE])
        assert begins(wanted) == [(0, 1), (2, 2)]
        assert wanted.runs[0].matcher is not wanted.runs[1].matcher
        assert state.enter([5, ONE, 7, TWO]) == [TWO]

    def test_a_marker_that_the_grammar_allows_too(self) -> None:
        """What was drawn is the grammar's from its first token on, once it is no marker."""
        state = matcher(7, unless_opened=(ONE, 5))
        wanted = state.masks_in([ONE, TWO])
        assert begins(wanted) == [(0, 3)]
        assert wanted.also == {0: ONE, 1: 5}
        assert state.enter([ONE]) == []
        assert begins(state.masks_in([TWO])) == [(0, 2)]
        assert state.masks_in([TWO]).also == {0: 5}
        assert state.enter([TWO]) == [ONE, TWO]

    def test_a_marker_that_the_grammar_refuses_must_go_on(self) -> None:
        state = matcher(7, unless_opened=(LETTER, 5))
        assert state.enter([LETTER]) == []
        wanted = state.masks_in([5, 7])
        assert begins(wanted) == [(2, 1)]
        assert wanted.also == {0: 5}


class TestBudget:
    def test_behind_so_many_thoughts_only_the_marker_may_come(self) -> None:
        budget = ThinkingBudget(num_tokens=2, begin=(5,), end=(7, 8), are_open=True)
        state = ChoiceMatcher(None, None, budget)
        assert state.masks_in([1, 7, 8]).forced == {2: 8}, "its own beginning of the marker counts"
        assert state.masks_in([1, 2, 3]).forced == {2: 7, 3: 7}
        assert state.enter([1, 2]) == []
        assert state.masks_in([7, 8, 5]).forced == {0: 7, 1: 8, 3: 7}
        state.enter([7, 8])
        assert state.masks_in([1]).forced == {}

    def test_the_grammar_begins_behind_the_forced_marker(self) -> None:
        budget = ThinkingBudget(num_tokens=0, begin=(5,), end=(7,), are_open=False)
        state = matcher(7, unless_opened=(5,), budget=budget)
        wanted = state.masks_in([5, 7, ONE])
        assert begins(wanted) == [(0, 1), (2, 2)]
        assert (wanted.also, wanted.forced) == ({0: 5}, {1: 7})


@dataclass
class _Read:
    """What the definition says of the next token."""

    grammar: list[int] | None
    also: int | None
    forced: int | None


def _read(grammar: Grammar, budget: ThinkingBudget, so_far: list[int]) -> _Read:
    """The definitions of `Grammar` and `ThinkingBudget`, read from the whole text."""
    opening, after, num = list(grammar.unless_opened), list(grammar.after), len(so_far)
    found = _Read(None, None, None)
    is_opened = so_far[: len(opening)] == opening
    if opening and not is_opened:
        found.grammar = so_far
        if num < len(opening) and so_far == opening[:num]:
            found.also = opening[num]
    else:
        first = len(opening) + len(after)
        ends = [i for i in range(first, num + 1) if so_far[i - len(after) : i] == after]
        found.grammar = so_far[ends[0] :] if ends else None
    is_open, recent, thoughts = budget.are_open, list[int](), 0
    for token_id in so_far:
        recent.append(token_id)
        thoughts += is_open
        marker = list(budget.end if is_open else budget.begin)
        if recent[-len(marker) :] == marker:
            thoughts -= len(marker) * is_open
            is_open, recent = not is_open, []
    if is_open and thoughts >= budget.num_tokens:
        end = list(budget.end)
        begun = max(n for n in range(len(end)) if recent[len(recent) - n :] == end[:n])
        found.forced = end[begun]
    return found


@pytest.mark.parametrize("seed", range(60))
def test_masks_are_those_of_the_definition_however_tokens_come(seed: int) -> None:
    draw = random.Random(seed)
    few = [ONE, 5, 7]

    def some(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.choices(few, k=draw.randint(low, high)))

    grammar = Grammar(source=SOURCE, after=some(1, 3), unless_opened=some(0, 2))
    budget = ThinkingBudget(
        num_tokens=draw.randint(0, 4),
        begin=some(1, 2),
        end=some(1, 3),
        are_open=draw.random() < 0.5,
    )
    state = ChoiceMatcher(grammar, LLMatcher(ll_tokenizer(), SOURCE, log_level=0), budget)
    so_far: list[int] = []
    consumed: list[int] = []
    for _ in range(12):
        drafts = list(some(0, 5))
        wanted = state.masks_in(drafts)
        runs = {
            run.first + i: run.drafts[:i] for run in wanted.runs for i in range(1 + len(run.drafts))
        }
        for i in range(1 + len(drafts)):
            reported = _read(grammar, budget, so_far + drafts[:i])
            assert wanted.forced.get(i) == reported.forced
            assert wanted.also.get(i) == reported.also
            assert (i in wanted.unended) == (reported.grammar is None)
            if reported.grammar is None:
                assert i not in runs
            elif i in runs:
                taken = reported.grammar if i else consumed or reported.grammar
                assert taken[len(taken) - len(runs[i]) :] == runs[i]
            else:  # what was drawn is no text of the grammar's, so only the marker may come
                assert reported.also is not None or reported.grammar[:1] != [ONE]
        entered = drafts[: draw.randint(0, len(drafts))] + list(some(1, 1))
        so_far += entered
        consumed += state.enter(entered)
        reported = _read(grammar, budget, so_far)
        if reported.also is None:
            assert consumed == (reported.grammar or [])


def test_choices_of_one_compiled_grammar_go_their_own_ways() -> None:
    compiled = LLMatcher(ll_tokenizer(), SOURCE, log_level=0)
    first, second = (ChoiceMatcher(Grammar(source=SOURCE), compiled).matcher for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.consume_token(ONE)
    assert first.consume_token(TWO)
    assert not first.consume_token(ONE)
    assert second.validate_tokens([ONE, TWO]) == 2


def test_an_error_is_one_line() -> None:
    failed, fresh = matcher().matcher, matcher().matcher
    assert failed is not None
    assert fresh is not None
    assert not failed.consume_token(LETTER)
    assert "doesn't satisfy the grammar" in error_of(failed)
    assert "\n" not in error_of(failed)
    assert error_of(fresh) == "llguidance does not say why"
