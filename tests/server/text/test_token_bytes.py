"""What is read off a decoder, and that a decoder which does something else is not trusted."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, decoders

from server.text.detokenize import ByteDetokenizer, RunDetokenizer, TokenBytes, WindowDetokenizer
from server.text.token_bytes import detokenizer_of, read_token_bytes
from server.text.tokenizer import FastTokenizer
from tests.fake_values import VOCAB_SIZE
from tests.fakes import BOS, EOS, SPECIAL, byte_backend
from tests.server.text.backends import sentencepiece_backend


def read(backend: Tokenizer) -> TokenBytes:
    token_bytes = read_token_bytes(backend)
    assert token_bytes is not None
    return token_bytes


def test_byte_level_tokens_are_bytes() -> None:
    token_bytes = read(byte_backend())
    assert token_bytes.raw[:256] == [bytes([i]) for i in range(256)]
    assert token_bytes.raw[EOS] == b"<eos>"
    assert token_bytes.special == {EOS, BOS, SPECIAL}
    assert token_bytes.byte_ids == frozenset()


def test_byte_fallback_is_told_from_text() -> None:
    token_bytes = read(sentencepiece_backend())
    assert token_bytes.raw[0xC3] == b"\xc3"
    assert token_bytes.raw[256:260] == [b" ", b" the", b"he", " é".encode()]
    assert token_bytes.byte_ids == frozenset(range(256))


def test_each_kind_has_its_detokenizer() -> None:
    for backend, kind in (
        (byte_backend(), ByteDetokenizer),
        (sentencepiece_backend(), RunDetokenizer),
    ):
        token_bytes = read(backend)
        assert isinstance(detokenizer_of(token_bytes, token_bytes.raw), kind)
        made = FastTokenizer(backend).detokenizer(skip_special_tokens=True)
        assert isinstance(made, kind)


def test_a_decoder_that_differs_from_what_was_read_is_not_trusted() -> None:
    """A content-changing Replace looks like SentencePiece's but is not."""
    backend = byte_backend()
    backend.decoder = decoders.Replace("a", "b")
    assert read_token_bytes(backend) is None
    tokenizer = FastTokenizer(backend)
    assert isinstance(tokenizer.detokenizer(skip_special_tokens=True), WindowDetokenizer)


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}])
def test_other_decoders_get_a_window(decoder: dict[str, object] | None) -> None:
    description = json.loads(byte_backend().to_str())
    description["decoder"] = decoder
    backend = Tokenizer.from_str(json.dumps(description))
    assert read_token_bytes(backend) is None


def test_metaspace_is_understood() -> None:
    backend = sentencepiece_backend()
    backend.decoder = decoders.Metaspace()
    token_bytes = read(backend)
    assert not token_bytes.byte_ids
    assert token_bytes.raw[0x41] == b"<0x41>"


def test_ids_beyond_the_tokenizer_are_nothing() -> None:
    tokenizer = FastTokenizer(byte_backend())
    tokenizer.reserve(VOCAB_SIZE)
    text = tokenizer.detokenizer(skip_special_tokens=True).feed([104, VOCAB_SIZE - 1, 105])
    assert text == "hi"
