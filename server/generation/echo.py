"""The prompt as text, for choices that begin with it."""

from __future__ import annotations

from dataclasses import dataclass

from server.generation.form import ReplyForm
from server.generation.prompts import Prompt
from server.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Echo:
    """A prompt as text: what the client wrote where its tokens spell that, else what they spell.

    Attributes:
        starts: where in the text each token begins.
    """

    text: str
    starts: list[int]


def echo_of(prompt: Prompt, form: ReplyForm, tokenizer: Tokenizer) -> Echo:
    """Make the text in front of an echoed choice.

    Special tokens that the client wrote are part of the text; one that the tokenizer added at
    either end is not.
    """
    token_ids: list[int] = prompt.token_ids.tolist()
    if prompt.text is not None:
        for head, tail in ((0, 0), (1, 0), (0, 1), (1, 1)):
            inner = token_ids[head : len(token_ids) - tail]
            text, starts = _decode_each(inner, False, form.spaces_between, tokenizer)
            if text == prompt.text:
                return Echo(text, [0] * head + starts + [len(text)] * tail)
    return Echo(*_decode_each(token_ids, form.skip_special_tokens, form.spaces_between, tokenizer))


def _decode_each(
    token_ids: list[int], skip_special: bool, between: bool, tokenizer: Tokenizer
) -> tuple[str, list[int]]:
    starts: list[int] = []
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip_special, between=between)
    text = detokenizer.feed(token_ids, starts) + detokenizer.flush()
    whole = tokenizer.decode(token_ids, skip_special_tokens=skip_special)
    if whole == text or not text.endswith(whole):
        return text, starts
    stripped = len(text) - len(whole)  # a text's leading space
    return whole, [max(start - stripped, 0) for start in starts]
