"""Markers by which text is filled in, of tokenizers that have them."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken

from server.text.fill_in import fill_in_markers
from server.text.tokenizer import FastTokenizer
from tests.fakes import byte_backend, byte_tokenizer


def tokenizer(*tokens: str) -> FastTokenizer:
    backend = byte_backend()
    backend.add_special_tokens([AddedToken(token, special=True) for token in tokens])
    return FastTokenizer(backend)


@pytest.mark.parametrize(
    ("tokens", "prompt"),
    [
        (
            ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
            "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
        ),
        (
            (
                "<\uff5cfim\u2581begin\uff5c>",
                "<\uff5cfim\u2581hole\uff5c>",
                "<\uff5cfim\u2581end\uff5c>",
            ),
            "<\uff5cfim\u2581begin\uff5c>a<\uff5cfim\u2581hole\uff5c>b<\uff5cfim\u2581end\uff5c>",
        ),
    ],
)
def test_prompts(tokens: tuple[str, ...], prompt: str) -> None:
    markers = fill_in_markers(tokenizer(*tokens))
    assert markers is not None
    assert markers.prompt("a", "b") == prompt


def test_all_three_are_needed() -> None:
    assert fill_in_markers(tokenizer("<|fim_prefix|>", "<|fim_suffix|>")) is None
    assert fill_in_markers(byte_tokenizer()) is None
