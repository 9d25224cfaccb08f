"""Stop strings: found by the text alone, held back no longer than needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.text.stop import Match, StopMatcher


@pytest.mark.parametrize(
    ("stops", "text", "match"),
    [
        (["b"], "abc", Match(1, 2, "b")),
        (["cd", "b"], "abcd", Match(1, 2, "b")),  # ends first, whatever the order
        (["b", "ab"], "xab", Match(1, 3, "ab")),  # both end there: the longest
        (["abc", "ab"], "abc", Match(0, 2, "ab")),  # as if read letter by letter
        (["x"], "abc", None),
        (["aa"], "aaa", Match(0, 2, "aa")),
    ],
)
def test_find(stops: list[str], text: str, match: Match | None) -> None:
    assert StopMatcher(stops).find(text, 0) == match


def test_find_looks_only_at_matches_that_end_in_new_text() -> None:
    matcher = StopMatcher(["ab"])
    assert matcher.find("abab", 2) == Match(2, 4, "ab")
    assert matcher.find("aab", 2) == Match(1, 3, "ab")


@pytest.mark.parametrize(
    ("stops", "text", "held"),
    [(["stop"], "a st", 2), (["stop"], "stop", 0), (["aab"], "aaa", 2), (["x"], "abc", 0)],
)
def test_held(stops: list[str], text: str, held: int) -> None:
    assert StopMatcher(stops).held(text) == held


words = st.text("ab", min_size=1, max_size=4)


@given(st.lists(words, min_size=1, max_size=3), st.text("ab", max_size=12))
def test_held_is_the_longest_end_that_begins_a_stop(stops: list[str], text: str) -> None:
    ends = [text[len(text) - n :] for n in range(1, len(text) + 1)]
    begun = [end for end in ends for stop in stops if stop.startswith(end) and stop != end]
    expected = max(map(len, begun), default=0)
    assert StopMatcher(stops).held(text) == expected


@given(st.lists(words, min_size=1, max_size=3), st.text("ab", max_size=12), st.integers(0, 12))
def test_chunks_do_not_change_what_is_found(stops: list[str], text: str, cut: int) -> None:
    matcher = StopMatcher(stops)
    first = matcher.find(text[:cut], 0)
    assert (first or matcher.find(text, min(cut, len(text)))) == matcher.find(text, 0)
