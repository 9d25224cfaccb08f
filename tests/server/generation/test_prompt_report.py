"""The prompt as text: what the client wrote where its tokens spell that."""

from __future__ import annotations

import numpy as np
import pytest

from server.generation.prompt_report import Echo, echo_of
from server.generation.prompts import Prompt
from server.text.tokenizer import Tokenizer
from tests.fakes import BOS, EOS, byte_tokenizer
from tests.server.generation.pieces import form
from tests.server.text.sentences import SENTENCE

THE, HE = 257, 258  # "▁the" and "he"


@pytest.mark.parametrize(
    ("tokenizer", "token_ids", "text", "echo"),
    [
        (byte_tokenizer(), [*b"ab"], "ab", Echo("ab", [0, 1])),
        (byte_tokenizer(), [BOS, *b"ab"], "ab", Echo("ab", [0, 0, 1])),
        (byte_tokenizer(), [BOS, 97, EOS, 98, EOS], "a<eos>b", Echo("a<eos>b", [0, 0, 1, 6, 7])),
        (byte_tokenizer(), [*b"b"], "ab", Echo("b", [0])),  # truncated: what the model saw
        (byte_tokenizer(), [97, EOS], None, Echo("a", [0, 1])),
        (SENTENCE, [THE, THE, HE], "the thehe", Echo("the thehe", [0, 3, 7])),
        (SENTENCE, [THE, HE], None, Echo("thehe", [0, 3])),
    ],
)
def test_echo(tokenizer: Tokenizer, token_ids: list[int], text: str | None, echo: Echo) -> None:
    prompt = Prompt(np.array(token_ids, dtype=np.int32), text, 0)
    assert echo_of(prompt, form(echo=True), tokenizer) == echo
