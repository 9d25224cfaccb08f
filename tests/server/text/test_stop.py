"""Stop strings: found by the text alone, held back no longer than needed, in linear time."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.text.stop import Match, StopMatcher, StopStrings
from tests.server.slowness import fastest, slowness


def first_match(stops: Sequence[str], text: str, ignored: int = 0) -> Match | None:
    """By definition: the least end after `ignored`, of those that end there the longest."""
    found = [
        (end, -len(stop), stop)
        for stop in stops
        for end in range(len(stop), len(text) + 1)
        if end > ignored and text[end - len(stop) : end] == stop
    ]
    if not found:
        return None
    end, _, stop = min(found)
    return Match(end - len(stop), end, stop)


def longest_beginning(stops: Sequence[str], text: str) -> int:
    """The longest end of the text that begins a stop string without being one."""
    ends = [text[len(text) - n :] for n in range(1, len(text) + 1)]
    begun = [end for end in ends for stop in stops if stop.startswith(end) and stop != end]
    return max(map(len, begun), default=0)


def find(stops: Sequence[str], text: str, ignored: int = 0) -> Match | None:
    return StopMatcher(StopStrings(stops)).feed(text, ignored)


@pytest.mark.parametrize(
    ("stops", "text", "match"),
    [
        (["b"], "abc", Match(1, 2, "b")),
        (["cd", "b"], "abcd", Match(1, 2, "b")),  # ends first, whatever the order
        (["b", "ab"], "xab", Match(1, 3, "ab")),  # both end there: the longest
        (["abc", "ab"], "abc", Match(0, 2, "ab")),  # as if read letter by letter
        (["abcd", "bc"], "abcx", Match(1, 3, "bc")),  # within one that is not completed
        (["x"], "abc", None),
        (["aa"], "aaa", Match(0, 2, "aa")),
        (["aab"], "aaab", Match(1, 4, "aab")),
        (["b", "b"], "ab", Match(1, 2, "b")),  # the same one twice
        (["日本", "本x"], "日本", Match(0, 2, "日本")),
        (["\x00"], "a\x00", Match(1, 2, "\x00")),
    ],
)
def test_find(stops: list[str], text: str, match: Match | None) -> None:
    assert find(stops, text) == match == first_match(stops, text)


def test_matches_that_end_too_early_do_not_count() -> None:
    assert find(["ab"], "abab", 2) == Match(2, 4, "ab")
    assert find(["ab"], "aab", 2) == Match(1, 3, "ab")  # though it begins before
    assert find(["aa"], "aaaa", 2) == Match(1, 3, "aa")  # though it overlaps one that did not
    assert find(["ab"], "abab", sys.maxsize) is None


@pytest.mark.parametrize(
    ("stops", "text", "held"),
    [
        (["stop"], "a st", 2),
        (["stop"], "stop", 0),
        (["aab"], "aaa", 2),
        (["x"], "abc", 0),
        (["stop", "stopper"], "stop", 4),
        (["aba"], "aba", 1),  # completed, and begun again
    ],
)
def test_held(stops: list[str], text: str, held: int) -> None:
    matcher = StopMatcher(StopStrings(stops))
    matcher.feed(text, sys.maxsize)
    assert matcher.held == held


stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=6)
texts = st.lists(st.text("ab", max_size=5), max_size=6)


@given(stop_lists, texts, st.integers(0, 20))
def test_as_by_definition_however_the_text_is_cut(
    stops: list[str], parts: list[str], ignored: int
) -> None:
    matcher, text = StopMatcher(StopStrings(stops)), ""
    for part in parts:
        match = matcher.feed(part, ignored)
        text += part
        assert match == first_match(stops, text, ignored)
        if match is not None:
            break
        assert matcher.held == longest_beginning(stops, text)


@given(stop_lists, st.text("abc", max_size=30))
def test_what_is_held_is_never_more_than_the_text(stops: list[str], text: str) -> None:
    matcher = StopMatcher(StopStrings(stops))
    matcher.feed(text, sys.maxsize)
    assert matcher.held == longest_beginning(stops, text)


def test_choices_of_a_request_do_not_disturb_each_other() -> None:
    stops = StopStrings(["ab"])
    one, other = StopMatcher(stops), StopMatcher(stops)
    assert one.feed("a") is None
    assert other.feed("b") is None
    assert one.feed("b") == Match(0, 2, "ab")


ADVERSARIAL = {
    "one letter": (["a" * (511 - i % 7) + chr(0x4E00 + i) for i in range(128)], "a"),
    "suffixes": (["a" * (384 + i % 127) + "b" for i in range(128)], "a"),
    "period": ([("ab" * 256)[i % 2 : 510 - i % 5] + chr(0x4E00 + i) for i in range(128)], "ab"),
    "far apart": ([chr(0x4E00 + i) + "a" * 510 + "b" for i in range(128)], "\u4e05" + "a" * 510),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_time_is_linear_whatever_the_stop_strings_are(name: str) -> None:
    """128 stop strings of 512 characters that the text begins again and again.

    The limit for 20,000 characters, fed four at a time as tokens are, is 5 us a character on an
    idle core; the quadratic search took 20 ms for each token.
    """
    stops, word = ADVERSARIAL[name]
    automaton = StopStrings(stops)
    text = word * (20_000 // len(word))

    def feed() -> None:
        matcher = StopMatcher(automaton)
        for start in range(0, len(text), 4):
            assert matcher.feed(text[start : start + 4]) is None
            assert matcher.held <= 512

    assert fastest(feed, 3) < 0.1 * slowness()


def test_the_automaton_is_small_and_soon_made() -> None:
    """The most that a request may ask for: 65,536 characters, no beginning shared."""
    stops = [
        "".join(chr(0x4E00 + (i * 512 + j) * 7 % 20_000) for j in range(512)) for i in range(128)
    ]
    assert fastest(lambda: StopStrings(stops), 3) < 0.4 * slowness()
