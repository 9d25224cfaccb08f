"""Texts that begin alike: the ids of each are those of the text tokenized whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from demo import MODEL_FOLDER
from server.text.shared_prefix import PrefixTokenizer, common_prefix
from server.text.tokenizer import FastTokenizer, Tokenizer, load_tokenizer

TEXT = ["the cat\n\nQuestion: is it\nA: yes\n \n\tQ\nQQ the the\n\nQuestion", "a\nQ b\nQ c\n\n\nQ"]
GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


def _trained(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Tokenizer:
    """A byte-pair tokenizer whose merges may cross line breaks where nothing splits them."""
    backend = Backend(models.BPE(unk_token=None))
    backend.pre_tokenizer = pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(TEXT * 20, trainer)
    backend.decoder = decoders.ByteLevel()
    backend.normalizer = normalizers.NFC()
    return FastTokenizer(backend)


def _first_space() -> Backend:
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "a"), ("\n", "\n"), ("c", "a")]
    letters = {char for text in TEXT for char in text} | set("▁.é日\u0301")
    vocab = [*sorted(letters), *("".join(pair) for pair in merges)]
    ids = {token: i for i, token in enumerate(vocab)}
    backend = Backend(models.BPE(vocab=ids, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    return backend


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    split = pre_tokenizers.Split(Regex(GPT2), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    match kind:
        case "demo":
            return load_tokenizer(str(MODEL_FOLDER))
        case "gpt2":
            return _trained(pre_tokenizers.Sequence([split, byte_level]))
        case "no split":  # a token "\nQ" is learned, so that no cut is there
            return _trained(byte_level)
        case _:  # Llama 2's: a space before the text, none of it split off
            return FastTokenizer(_first_space())


KINDS = ("demo", "gpt2", "no split", "first space")
words = st.text(st.sampled_from("aQt he\n\n\t.é\u0301日"), max_size=40)


def check(tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    """Compare with the whole texts; returns the number of shared ids."""
    found = PrefixTokenizer(tokenizer).encode(texts)
    for text, rest in zip(texts, found.rests, strict=True):
        whole = tokenizer.encode(text, add_special_tokens=False)
        assert [*found.prefix.tolist(), *rest.tolist()] == whole
        assert len(rest)
    return len(found.prefix)


@pytest.mark.parametrize("kind", KINDS)
@given(begin=words, ends=st.lists(words, min_size=1, max_size=4), literal=st.booleans())
def test_ids_are_those_of_whole_texts(
    kind: str, begin: str, ends: list[str], literal: bool
) -> None:
    begin = "the cat the " * 30 + begin + ("\n\nQuestion: " if literal else "")
    check(tokenizer_of(kind), [begin + end for end in ends])


@pytest.mark.parametrize("kind", ["demo", "gpt2", "first space"])
def test_what_texts_share_is_tokenized_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of(kind)
    state = "the cat is the cat\n" * 100
    texts = [f"{state}\n\nQuestion: is it {end}?" for end in ("the", "cat", "he")]
    assert check(tokenizer, texts) >= len(tokenizer.encode(state)) - 1
    prefixes = PrefixTokenizer(tokenizer)
    prefixes.encode(texts)
    seen = noted_lengths(tokenizer, monkeypatch)
    prefixes.encode(texts)
    assert [length > 100 for length in sorted(seen)] == [False, False, False, True]


@pytest.mark.parametrize("kind", KINDS)
@given(
    begin=words,
    ends=st.lists(st.lists(words, min_size=1, max_size=2), min_size=2, max_size=6),
    literal=st.booleans(),
    shift=st.integers(-8, 8),
)
def test_ids_after_a_known_beginning_are_those_without_it(
    kind: str, begin: str, ends: list[list[str]], literal: bool, shift: int
) -> None:
    begin = "the cat the " * 30 + begin + ("\n\nQuestion: " if literal else "")
    tokenizer = tokenizer_of(kind)
    prefixes = PrefixTokenizer(tokenizer)
    for each in ends:
        texts = [begin + end for end in each]
        found = prefixes.encode(texts, len(begin) - 12 + shift)
        anew = PrefixTokenizer(tokenizer).encode(texts)
        assert found.prefix.tolist() == anew.prefix.tolist()
        assert [rest.tolist() for rest in found.rests] == [rest.tolist() for rest in anew.rests]


def noted_lengths(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of texts that are tokenized from now on."""
    seen: list[int] = []
    encode, encode_each = tokenizer.encode, tokenizer.encode_each

    def noted(text: str, **options: Any) -> list[int]:
        seen.append(len(text))
        return encode(text, **options)

    def noted_each(texts: Sequence[str]) -> list[list[int]]:
        seen.extend(map(len, texts))
        return encode_each(texts)

    monkeypatch.setattr(tokenizer, "encode", noted)
    monkeypatch.setattr(tokenizer, "encode_each", noted_each)
    return seen


@pytest.mark.parametrize("kind", ["demo", "gpt2", "first space"])
def test_a_known_beginning_is_tokenized_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of(kind)
    prefixes, state = PrefixTokenizer(tokenizer), "the cat is the cat\n" * 100
    seen = noted_lengths(tokenizer, monkeypatch)
    asked = [f"{state}\n\nQuestion: is it {end}?" for end in ("the", "cat")]
    prefixes.encode(asked[:1], len(state))
    assert max(seen) > len(state)
    seen.clear()
    prefixes.encode(asked[1:], len(state))
    assert max(seen) < 100
    seen.clear()
    prefixes.encode(asked[1:], len(state), salt="mine")
    assert max(seen) > len(state)  # others' texts are not found


def test_known_beginnings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.text.shared_prefix.MAX_KNOWN_CHARS", 5000)
    tokenizer = tokenizer_of("demo")
    prefixes = PrefixTokenizer(tokenizer)
    seen = noted_lengths(tokenizer, monkeypatch)

    def is_known(letter: str, length: int = 2000) -> bool:
        seen.clear()
        state = letter * length
        prefixes.encode([f"{state}\n\nQuestion"], length)
        return max(seen) < 100

    assert not is_known("a")
    assert not is_known("b")
    assert is_known("a")
    assert not is_known("c")
    assert is_known("a")
    assert not is_known("b")  # the one asked for longest ago made room
    assert not is_known("d", 6000)
    assert not is_known("d", 6000)


def test_a_token_over_the_cut_leaves_whole_texts() -> None:
    tokenizer = tokenizer_of("no split")
    assert b"\nQ" in b" ".join(tokenizer.raw)
    check(tokenizer, ["the cat " * 60 + f"\n\nQ{end}" for end in ("the", " a")])


def test_common_prefix_leaves_an_id_to_each() -> None:
    found = common_prefix([[1, 2, 3], [1, 2], [1, 2, 4]])
    assert found.prefix.tolist() == [1]
    assert [rest.tolist() for rest in found.rests] == [[2, 3], [2], [2, 4]]
    assert common_prefix([[5]]).prefix.tolist() == []
