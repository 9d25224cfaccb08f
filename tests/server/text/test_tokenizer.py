"""Tokenizers: what a folder must have, and encoding with and without a limit."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tokenizers import normalizers

from engine.config import ConfigError
from server.command.configure import demo_model
from server.text.tokenizer import FastTokenizer, Side, SlowTokenizer, load_tokenizer
from tests.fakes import BOS, byte_backend, byte_tokenizer
from tests.server.slowness import slowness


def test_the_demo_model_s_tokenizer() -> None:
    tokenizer = load_tokenizer(str(demo_model()))
    text = "def f(x):\n    return 'né 日本'\n"
    token_ids = tokenizer.encode(text)
    assert tokenizer.decode(token_ids) == text
    detokenizer = tokenizer.detokenizer(skip_special_tokens=True)
    assert "".join(detokenizer.feed([i]) for i in token_ids) + detokenizer.flush() == text
    assert b"".join(tokenizer.raw[i] for i in token_ids).decode() == text
    assert tokenizer.description["eos_token"] == "<|endoftext|>"


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"has no tokenizer: none of tokenizer\.json"):
        load_tokenizer(str(tmp_path))


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such model folder"):
        load_tokenizer(str(tmp_path / "nothing"))


def test_a_broken_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_limits_drop_text_and_keep_special_tokens() -> None:
    tokenizer = byte_tokenizer(with_bos=True)
    assert tokenizer.encode("abc") == [BOS, *b"abc"]
    assert tokenizer.encode("abc", max_tokens=3) == [BOS, *b"bc"]
    assert tokenizer.encode("abc", max_tokens=3, truncation_side="right") == [BOS, *b"ab"]
    assert tokenizer.encode("abc", max_tokens=2, add_special_tokens=False) == list(b"bc")
    assert tokenizer.encode("abc", max_tokens=9) == [BOS, *b"abc"]


class TestCut:
    """A text far longer than what is kept of it is cut before it is tokenized."""

    @pytest.mark.parametrize("side", ["left", "right"])
    @pytest.mark.parametrize("keep", [1, 7, 500])
    def test_keeps_the_tokens_of_the_whole_text(self, side: Side, keep: int) -> None:
        tokenizer = load_tokenizer(str(demo_model()))
        text = (Path(__file__).read_text() + "日本語の文章、空白なし。" * 20) * 60
        whole = tokenizer.encode(text)
        kept = tokenizer.encode(text, max_tokens=keep, truncation_side=side)
        assert kept == (whole[-keep:] if side == "left" else whole[:keep])
        assert len(tokenizer._part(text, keep, side)) < len(text)  # type: ignore[attr-defined]

    def test_tokens_of_less_text_than_thought_are_kept_whole(self) -> None:
        """What a normalizer drops is not counted by a text's length."""
        backend = byte_backend()
        backend.normalizer = normalizers.Replace(" ", "")
        tokenizer = FastTokenizer(backend)
        text = "abc" + " " * 100_000
        assert tokenizer.encode(text, max_tokens=2) == list(b"bc")

    def test_three_megabytes_take_no_longer_than_what_is_kept(self) -> None:
        tokenizer = load_tokenizer(str(demo_model()))
        for text in ("hello, world\n" * 250_000, "a" * 3_000_000):
            began = time.process_time()
            assert len(tokenizer.encode(text, max_tokens=100)) == 100
            assert time.process_time() - began < 0.5 * slowness()


def test_a_lower_bound_of_tokens() -> None:
    tokenizer = byte_tokenizer()
    text = "<special>" * 100
    assert 0 < tokenizer.min_tokens(text) <= len(tokenizer.encode(text)) == 100


def test_truncation_and_padding_of_the_file_are_off() -> None:
    backend = byte_backend()
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    assert FastTokenizer(backend).encode("abcdef") == list(b"abcdef")


def test_long_lists_decode_as_short_ones_do() -> None:
    tokenizer = byte_tokenizer()
    ids = [*("né" * 5000).encode(), 0xFF]
    assert tokenizer.decode(ids) == "né" * 5000 + "\ufffd"


class _Slow:
    """A tokenizer as transformers writes them in Python: a token a word."""

    truncation_side = "right"
    words = ("a", "b", "c")
    all_special_ids = ()

    def __len__(self) -> int:
        return 3

    def encode(
        self, text: str, add_special_tokens: bool, truncation: bool, max_length: int | None
    ) -> list[int]:
        ids = [self.words.index(word) for word in text.split()]
        if not truncation or max_length is None:
            return ids
        return ids[-max_length:] if self.truncation_side == "left" else ids[:max_length]

    def decode(self, ids: list[int], **_: object) -> str:
        return " ".join(self.words[i] for i in ids)


def test_slow_tokenizers() -> None:
    tokenizer = SlowTokenizer(_Slow())
    assert tokenizer.encode("a b c") == [0, 1, 2]
    assert tokenizer.encode("a b c", max_tokens=2) == [1, 2]
    assert tokenizer.encode("a b c", max_tokens=2, truncation_side="right") == [0, 1]
    assert tokenizer.encode_each(["b", "c a"]) == [[1], [2, 0]]
    detokenizer = tokenizer.detokenizer(skip_special_tokens=True, context=[0])
    assert [detokenizer.feed([i]) for i in (1, 2)] == [" b", " c"]
    tokenizer.reserve(5)
    assert (tokenizer.texts, tokenizer.min_tokens("a b")) == (["a", "b", "c", "", ""], 0)
