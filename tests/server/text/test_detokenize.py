"""Joined text equals a full decode, whatever the ids and however they are fed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.text.detokenize import (
    ByteDetokenizer,
    Detokenizer,
    RunDetokenizer,
    WindowDetokenizer,
)
from tests.fakes import EOS, SPECIAL
from tests.server.text.sentences import BYTE, SENTENCE

SENTENCE_ANCHOR = 258  # "he"


def fed(detokenizer: Detokenizer, token_ids: list[int], cuts: list[int]) -> tuple[str, list[int]]:
    """Text and starts after feeding slices that end at `cuts`."""
    starts: list[int] = []
    text, begin = "", 0
    for end in [*sorted(cut for cut in cuts if cut < len(token_ids)), len(token_ids)]:
        text += detokenizer.feed(token_ids[begin:end], starts)
        assert detokenizer.length == len(text)
        begin = end
    text += detokenizer.flush()
    assert detokenizer.length == len(text)
    return text, starts


cut_lists = st.lists(st.integers(0, 40), max_size=6, unique=True)
utf8_ids = st.text(max_size=12).map(lambda text: list(text.encode()))
byte_ids = st.lists(st.integers(0, SPECIAL), max_size=40) | utf8_ids


def chars_of(raw: bytes) -> list[int]:
    """The character of the replacing decode that each byte is in."""
    chars: list[int] = []
    count = 0
    while raw:
        try:
            good, bad = raw.decode(), 0
        except UnicodeDecodeError as error:
            good, bad = raw[: error.start].decode(), error.end - error.start
        for char in good:
            chars += [count] * len(char.encode())
            count += 1
        chars += [count] * bad
        count += bad > 0
        raw = raw[len(good.encode()) + bad :]
    return chars


BYTES = [bytes([i]) for i in range(256)]


@pytest.mark.parametrize(
    ("tokens", "text", "starts"),
    [
        # A lead byte, and what does not continue it: the held byte becomes a U+FFFD of its own, so
        # the next token begins one character on.
        ([b"\xc3", b"a"], "\ufffda", [0, 1]),
        ([b"\xc3", b"a", b"b"], "\ufffdab", [0, 1, 2]),
        ([b"x", b"\xc3", b"a"], "x\ufffda", [0, 1, 2]),
        ([b"\xc3", b"\xc3"], "\ufffd\ufffd", [0, 1]),
        ([b"\xc3", b"\xc3", b"\xa9"], "\ufffdé", [0, 1, 1]),
        ([b"\xf0", b"\xe2", b"\x82", b"\xac"], "\ufffd€", [0, 1, 1, 1]),
        # Two of three bytes are one broken character together.
        ([b"\xe2\x82", b"a"], "\ufffda", [0, 1]),
        ([b"\xe2", b"\x82", b"a"], "\ufffda", [0, 0, 1]),
        ([b"\xf0\x9f\x98", b"a"], "\ufffda", [0, 1]),
        # Continuations that are none: 80 after E0, A0 after ED (half of a surrogate pair, which the
        # decoder holds on to), 90 after F4, FF after anything.
        ([b"\xe0", b"\x80"], "\ufffd\ufffd", [0, 1]),
        ([b"\xed", b"\xa0"], "\ufffd\ufffd", [0, 1]),
        ([b"\xed", b"\xa0", b"\x80", b"a"], "\ufffd\ufffd\ufffda", [0, 1, 2, 3]),
        ([b"\xed\xa0", b"a"], "\ufffd\ufffda", [0, 2]),
        ([b"\xf4", b"\x90"], "\ufffd\ufffd", [0, 1]),
        ([b"\xe2\x82", b"\xff"], "\ufffd\ufffd", [0, 1]),
        ([b"\x80", b"a"], "\ufffda", [0, 1]),
        # Nothing breaks off: the character began with the token before.
        ([b"\xc3", b"\xa9"], "é", [0, 0]),
        ([b"\xe2\x82", b"\xac" + b"a", b"b"], "€ab", [0, 0, 2]),
        ([b"a\xc3", b"\xa9b", b"c"], "aébc", [0, 1, 3]),
        # A token without bytes, and one that ends in a lead byte that the end leaves alone.
        ([b"\xc3", b"", b"a"], "\ufffda", [0, 0, 1]),
        ([b"a", b"\xc3"], "a\ufffd", [0, 1]),
    ],
)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_where_tokens_begin_in_broken_text(
    tokens: list[bytes], text: str, starts: list[int], one_by_one: bool
) -> None:
    cuts = list(range(len(tokens))) if one_by_one else []
    ids = list(range(len(tokens)))
    assert fed(ByteDetokenizer(tokens), ids, cuts) == (text, starts)
    assert b"".join(tokens).decode(errors="replace") == text


broken_utf8 = st.lists(
    st.sampled_from([*"a\né日😀".encode(), 0xE0, 0xED, 0xA0, 0x80, 0xFF]), max_size=20
)


@given(broken_utf8, cut_lists)
def test_a_token_starts_at_the_character_of_its_first_byte(ids: list[int], cuts: list[int]) -> None:
    _, starts = fed(ByteDetokenizer(BYTES), ids, cuts)
    assert starts == chars_of(bytes(ids))


chunks = st.lists(st.binary(max_size=3) | st.sampled_from([b"a", b"\xc3", b"\xe2\x82"]), max_size=8)


@given(chunks, cut_lists)
def test_tokens_of_several_bytes_start_where_their_first_byte_is(
    tokens: list[bytes], cuts: list[int]
) -> None:
    text, starts = fed(ByteDetokenizer(tokens), list(range(len(tokens))), cuts)
    raw = b"".join(tokens)
    assert text == raw.decode(errors="replace")
    chars = chars_of(raw)
    firsts = [len(b"".join(tokens[:i])) for i in range(len(tokens))]
    for token, first, start in zip(tokens, firsts, starts, strict=True):
        if token:  # one without bytes begins nowhere
            assert start == chars[first]


@given(byte_ids, cut_lists, st.booleans())
def test_byte_level_equals_a_full_decode(ids: list[int], cuts: list[int], skip: bool) -> None:
    text, starts = fed(BYTE.detokenizer(skip_special_tokens=skip), ids, cuts)
    assert text == BYTE.decode(ids, skip_special_tokens=skip)
    assert len(starts) == len(ids)
    assert starts == sorted(starts)


@given(byte_ids, cut_lists)
def test_starts_do_not_depend_on_the_cuts(ids: list[int], cuts: list[int]) -> None:
    whole = fed(BYTE.detokenizer(skip_special_tokens=True), ids, [])
    assert fed(BYTE.detokenizer(skip_special_tokens=True), ids, cuts) == whole
    without = BYTE.detokenizer(skip_special_tokens=True)
    assert without.feed(ids) + without.flush() == whole[0]


sentence_ids = st.lists(st.integers(0, 262) | st.integers(0x80, 0xFF), max_size=30) | utf8_ids


@given(sentence_ids, cut_lists)
def test_byte_fallback_equals_a_full_decode(ids: list[int], cuts: list[int]) -> None:
    """After plain text: at the start of a text the decoder strips a space."""
    text, starts = fed(
        SENTENCE.detokenizer(skip_special_tokens=False), [SENTENCE_ANCHOR, *ids], cuts
    )
    assert text == SENTENCE.decode([SENTENCE_ANCHOR, *ids])
    assert starts == sorted(starts)


def test_byte_fallback_decodes_a_run_as_a_whole() -> None:
    detokenizer = SENTENCE.detokenizer(skip_special_tokens=False)
    assert detokenizer.feed([0xC3, 0xA9]) == ""  # é, unless the run goes on wrongly
    assert detokenizer.feed([0xFF]) == "\ufffd" * 3
    assert detokenizer.feed([0x41]) == "\ufffd"  # still the same run
    assert detokenizer.feed([SENTENCE_ANCHOR]) == "he"


def test_a_token_without_text_does_not_end_a_run() -> None:
    """A special token that is hidden, between the bytes of one character."""
    detokenizer = RunDetokenizer([b"\xe2", b"\x82", b"\xac", b""], frozenset(range(3)))
    assert detokenizer.feed([0, 3, 1, 2]) + detokenizer.flush() == "€"


def test_a_broken_run_spoils_no_later_one() -> None:
    raw = [b"\xe2", b"\x82", b"\xac", b"\xff", b"a"]
    for cuts in ([], [1], [2], [3]):
        detokenizer = RunDetokenizer(raw, frozenset(range(4)))
        assert fed(detokenizer, [3, 4, 0, 1, 2, 4], cuts)[0] == "\ufffda€a"


def test_a_long_run_is_not_held_back_for_ever() -> None:
    detokenizer = SENTENCE.detokenizer(skip_special_tokens=False)
    raw = list(("é" * 100).encode())
    given_out = [detokenizer.feed([token_id]) for token_id in raw]
    assert max(len(part) for part in given_out) <= RunDetokenizer.MAX_RUN
    assert "".join(given_out) + detokenizer.flush() == "é" * 100


def test_incomplete_bytes_are_held_back_then_flushed_as_a_full_decode_has_them() -> None:
    detokenizer = BYTE.detokenizer(skip_special_tokens=True)
    assert detokenizer.feed([0xF0, 0x9F, 0x98]) == ""
    assert detokenizer.flush() == BYTE.decode([0xF0, 0x9F, 0x98]) == "\ufffd"


def test_special_tokens_are_hidden_or_shown() -> None:
    assert BYTE.detokenizer(skip_special_tokens=True).feed([104, EOS, 105]) == "hi"
    assert BYTE.detokenizer(skip_special_tokens=False).feed([104, EOS, 105]) == "h<eos>i"


@given(st.text(max_size=20), cut_lists)
def test_a_window_joins_to_the_text(text: str, cuts: list[int]) -> None:
    ids = list(text.encode())
    window = WindowDetokenizer(lambda ids: BYTE.decode(ids))
    assert fed(window, ids, cuts)[0] == text


def test_a_window_lets_broken_bytes_go_at_last() -> None:
    window = WindowDetokenizer(lambda ids: BYTE.decode(ids))
    parts = [window.feed([0xFF]) for _ in range(100)]
    assert "".join(parts) + window.flush() == "\ufffd" * 100


def test_cost_per_token_does_not_grow() -> None:
    """The window decodes a bounded number of ids however long the text is."""
    sizes: list[int] = []

    def decode(ids: list[int]) -> str:
        sizes.append(len(ids))
        return BYTE.decode(ids)

    window = WindowDetokenizer(decode, context=[1] * 99)
    window.feed(list(b"x" * 2000))
    assert max(sizes) <= WindowDetokenizer.CONTEXT + WindowDetokenizer.MAX_HELD + 1
