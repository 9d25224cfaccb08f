"""Dialogues as ids: what is learned of them, and how they are padded."""

import itertools

import pytest
import torch
from tokenizers import Tokenizer

from demo.chat import prompt_of, reply_of
from demo.dialogue_batches import dialogue_batches, learned_dialogue, learned_dialogues
from demo.dialogues import dialogues, without_thoughts
from tests.demo.chat_tokenizer import chat_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return chat_tokenizer()


def decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=False)
    return text


def test_replies_are_learned_and_nothing_else(tokenizer: Tokenizer) -> None:
    for dialogue in itertools.islice(dialogues(7), 100):
        whole = learned_dialogue(tokenizer, dialogue, dialogue.replies)
        learned = [i for i, is_learned in zip(whole.ids, whole.learned, strict=True) if is_learned]
        replies = [
            reply_of(dialogue.history + dialogue.turns[:place], dialogue.turns[place])
            for place in dialogue.replies
        ]
        assert decode(tokenizer, learned) == "".join(replies)
        *before, last = dialogue.turns
        prompt = prompt_of(dialogue.history + before, dialogue.tools)
        assert decode(tokenizer, whole.ids) == prompt + replies[-1]
        assert last["content"] in replies[-1]


def test_a_reply_alone_stands_behind_a_prompt_without_thoughts(tokenizer: Tokenizer) -> None:
    dialogue = next(each for each in dialogues(7) if len(each.calls) > 1)
    place = dialogue.replies[1]
    before = dialogue.history + without_thoughts(dialogue.turns[:place])
    for thinks in (True, False):
        alone = learned_dialogue(tokenizer, dialogue, [place], thinks=thinks)
        first = alone.learned.index(True)
        assert decode(tokenizer, alone.ids[:first]) == prompt_of(
            before, dialogue.tools, thinks=thinks
        )
        assert all(alone.learned[first:])
        assert decode(tokenizer, alone.ids[first:]).startswith("<think>") == thinks


def test_ids_are_those_of_the_whole_text(tokenizer: Tokenizer) -> None:
    """Servers encode prompts in one piece."""
    for each in itertools.islice(learned_dialogues(tokenizer, 1, 2048), 100):
        assert tokenizer.encode(decode(tokenizer, each.ids)).ids == each.ids


def test_batches_name_each_reply_s_tokens_at_the_places_before_them(tokenizer: Tokenizer) -> None:
    batch = next(dialogue_batches(tokenizer, 1, 4, 512))
    assert batch.inputs.shape[0] == 4
    assert batch.inputs.shape[1] % 32 == 0
    flat = batch.inputs.flatten()
    # Within a reply, the input behind a place is its target; its last token is in no input.
    inner = torch.nonzero(batch.places[1:] == batch.places[:-1] + 1).flatten()
    assert len(inner) > 20
    assert torch.equal(flat[batch.places[inner] + 1], batch.targets[inner])
