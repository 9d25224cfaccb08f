"""Prompts whose generated parts are the ids that were generated."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from server.conversation.replay import replayed_ids
from server.response_store.records import GeneratedRun
from server.text.tokenizer import FastTokenizer

PROMPT, SAID = "[a]go[b]", "abab<end>"


@pytest.fixture(scope="module")
def tokenizer() -> FastTokenizer:
    """Bytes, and pairs of them that texts are joined to."""
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {name: i for i, name in enumerate(names)}
    merges = [("a", "b"), ("ab", "ab"), ("]", "a")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    backend = Backend(BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True)])
    made = FastTokenizer(backend)
    made.reserve(len(made.raw))
    return made


def ids(tokenizer: FastTokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def one_by_one(tokenizer: FastTokenizer, text: str) -> GeneratedRun:
    """A reply that the model wrote by letters, as no tokenizer would."""
    body = [ids(tokenizer, char)[0] for char in text.removesuffix("<end>")]
    end = ids(tokenizer, "<end>") if text.endswith("<end>") else []
    return GeneratedRun(len(PROMPT), np.array(body + end, dtype=np.int32))


def test_the_prompt_begins_with_what_the_model_has_seen(tokenizer: FastTokenizer) -> None:
    run = one_by_one(tokenizer, SAID)
    found = replayed_ids(f"{PROMPT}{SAID}[a]more[b]", tokenizer, [run]).tolist()
    seen = ids(tokenizer, PROMPT) + run.token_ids.tolist()
    assert found[: len(seen)] == seen
    assert tokenizer.decode(found) == f"{PROMPT}{SAID}[a]more[b]"
    assert found != ids(tokenizer, f"{PROMPT}{SAID}[a]more[b]")


def test_several_turns(tokenizer: FastTokenizer) -> None:
    first = one_by_one(tokenizer, SAID)
    text = f"{PROMPT}{SAID}[a]more[b]"
    second = one_by_one(tokenizer, SAID)._replace(start=len(text))
    known = replayed_ids(text, tokenizer, [first]).tolist() + second.token_ids.tolist()
    found = replayed_ids(f"{text}{SAID}!", tokenizer, [first, second]).tolist()
    assert found == known + ids(tokenizer, "!")


@pytest.mark.parametrize(
    "text",
    [
        f"{PROMPT}abax<end>[a]",  # the template writes something else
        f"x{PROMPT}{SAID}[a]",  # in another place
        PROMPT,  # nothing at all
    ],
)
def test_what_is_not_in_its_place_is_tokenized(tokenizer: FastTokenizer, text: str) -> None:
    run = one_by_one(tokenizer, SAID)
    assert replayed_ids(text, tokenizer, [run]).tolist() == ids(tokenizer, text)


def test_a_reply_that_the_text_goes_on_with(tokenizer: FastTokenizer) -> None:
    """Its last token would not be one before this text."""
    run = one_by_one(tokenizer, "aba")
    text = f"{PROMPT}abab"
    assert replayed_ids(text, tokenizer, [run]).tolist() == ids(tokenizer, text)


def test_ids_that_are_no_text(tokenizer: FastTokenizer) -> None:
    half = ids(tokenizer, "é")[:1]
    run = GeneratedRun(len(PROMPT), np.array(half, dtype=np.int32))
    assert replayed_ids(f"{PROMPT}é", tokenizer, [run]).tolist() == ids(tokenizer, f"{PROMPT}é")
