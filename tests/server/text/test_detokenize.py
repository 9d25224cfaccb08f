"""Joined text equals a full decode, whatever the ids and however they are fed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from server.text.detokenize import (
    ByteDetokenizer,
    Detokenizer,
    RunDetokenizer,
    WindowDetokenizer,
)
from server.text.token_bytes import read_pieces
from server.text.tokenizer import FastTokenizer
from tests.fakes import EOS, SPECIAL, VOCAB_SIZE, byte_backend


def sentencepiece_backend() -> Tokenizer:
    """Llama-2's decoder: "▁" for a space, byte fallback, one leading space stripped."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {word: 256 + i for i, word in enumerate(["▁", "▁the", "he", "▁é", "日本", "a", "▁▁"])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["<s>"])
    return backend


BYTE, SENTENCE = FastTokenizer(byte_backend()), FastTokenizer(sentencepiece_backend())
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


broken_utf8 = st.lists(st.sampled_from([*"a\né日😀".encode(), 0xE0, 0x80, 0xFF]), max_size=20)


@given(broken_utf8, cut_lists)
def test_a_token_starts_at_the_character_of_its_first_byte(ids: list[int], cuts: list[int]) -> None:
    _, starts = fed(ByteDetokenizer([bytes([i]) for i in range(256)]), ids, cuts)
    assert starts == chars_of(bytes(ids))


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

    window = WindowDetokenizer(decode)
    window.feed(list(b"x" * 2000))
    assert max(sizes) <= WindowDetokenizer.CONTEXT + WindowDetokenizer.MAX_HELD + 1


class TestPieces:
    def test_byte_level_and_byte_fallback_are_understood(self) -> None:
        assert isinstance(BYTE.detokenizer(skip_special_tokens=True), ByteDetokenizer)
        assert isinstance(SENTENCE.detokenizer(skip_special_tokens=True), RunDetokenizer)

    def test_a_decoder_that_differs_from_its_pieces_is_not_trusted(self) -> None:
        """A content-changing Replace looks like SentencePiece's but is not."""
        backend = byte_backend()
        backend.decoder = decoders.Replace("a", "b")
        assert read_pieces(backend) is None
        tokenizer = FastTokenizer(backend)
        assert isinstance(tokenizer.detokenizer(skip_special_tokens=True), WindowDetokenizer)

    @pytest.mark.parametrize("decoder", [None, decoders.WordPiece()])
    def test_other_decoders_get_a_window(self, decoder: object) -> None:
        backend = byte_backend()
        if decoder is not None:
            backend.decoder = decoder
        else:
            description = json.loads(backend.to_str())
            description["decoder"] = None
            backend = Tokenizer.from_str(json.dumps(description))
        assert read_pieces(backend) is None

    def test_metaspace_is_understood(self) -> None:
        backend = sentencepiece_backend()
        backend.decoder = decoders.Metaspace()
        pieces = read_pieces(backend)
        assert pieces is not None
        assert not pieces.byte_ids
        assert pieces.raw[0x41] == b"<0x41>"

    def test_ids_beyond_the_tokenizer_are_nothing(self) -> None:
        tokenizer = FastTokenizer(byte_backend())
        tokenizer.reserve(VOCAB_SIZE)
        text = tokenizer.detokenizer(skip_special_tokens=True).feed([104, VOCAB_SIZE - 1, 105])
        assert text == "hi"
