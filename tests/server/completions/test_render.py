"""The prompt as text, and what is worth a thread."""

from __future__ import annotations

import numpy as np
import pytest

from server.completions.prepare import ReplyForm
from server.completions.prompts import Prompt
from server.completions.render import Echo, echo_of
from server.text.tokenizer import Tokenizer
from tests.fakes import BOS, EOS, byte_tokenizer
from tests.server.text.test_detokenize import SENTENCE

FORM = ReplyForm(
    stream=False,
    echo=True,
    stops=(),
    include_stop=False,
    min_tokens=0,
    num_top=0,
    explicit_ids=None,
    num_prompt_top=None,
    prompt_explicit_ids=None,
    prompt_logprobs=None,
    mode="raw_logprobs",
    tokens_as_ids=False,
    return_token_ids=False,
    skip_special_tokens=True,
    spaces_between=True,
    next_token_only=False,
    silent_ends=frozenset(),
    packed=False,
)
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
    assert echo_of(prompt, FORM, tokenizer) == echo
