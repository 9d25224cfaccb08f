"""Dialogues as ids: what is learned of them, and how they are padded."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from tokenizers import Tokenizer

from demo.chat import NO_THOUGHTS, prompt_of, reply_of
from demo.dialogue_batches import (
    DialogueBatch,
    dialogue_batches,
    drawn_ahead,
    learned_decisions,
    learned_dialogue,
    learned_dialogues,
)
from demo.dialogues import dialogues, without_thoughts
from demo.run import TrainingSettings
from demo.tokens import TURN_END_ID
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


def test_decisions_are_labels_behind_closed_thoughts(tokenizer: Tokenizer) -> None:
    for each in itertools.islice(learned_decisions(tokenizer, 1), 50):
        first = each.learned.index(True)
        assert decode(tokenizer, each.ids[:first]).endswith("assistant\n" + NO_THOUGHTS)
        assert each.ids[-1] == TURN_END_ID
        assert "<think>" not in decode(tokenizer, each.ids[first:])


def test_batches_name_each_reply_s_tokens_at_the_places_before_them(tokenizer: Tokenizer) -> None:
    settings = TrainingSettings(num_dialogues=4, num_decisions=3, decision_weight=2.0)
    batch = next(dialogue_batches(tokenizer, 1, settings, 512))
    assert batch.inputs.shape[0] == 7
    assert batch.inputs.shape[1] % 32 == 0
    flat = batch.inputs.flatten()
    # Within a reply, the input after a place is its target; its last token is in no input.
    inner = torch.nonzero(batch.places[1:] == batch.places[:-1] + 1).flatten()
    assert len(inner) > 20
    assert torch.equal(flat[batch.places[inner] + 1], batch.targets[inner])
    # Each kind's weight is that of all its tokens.
    is_dialogue = batch.places < 4 * batch.inputs.shape[1]
    assert batch.weights[is_dialogue].sum().item() == pytest.approx(0.5)
    assert batch.weights[~is_dialogue].sum().item() == pytest.approx(2.0)
    ends = batch.targets == TURN_END_ID
    assert int((ends & ~is_dialogue).sum()) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_drawn_ahead(tokenizer: Tokenizer, workers: int) -> None:
    settings = TrainingSettings(num_dialogues=1, num_decisions=1)

    def draw(seed: int) -> Iterator[DialogueBatch]:
        return dialogue_batches(tokenizer, seed, settings, 512)

    ahead = drawn_ahead(draw, 5, workers)
    found = [next(ahead) for _ in range(2)]
    seeds = [5, 6] if workers else [5]
    own = [draw(seed) for seed in seeds]
    for i, batch in enumerate(found):
        assert torch.equal(batch.inputs, next(own[i % len(own)]).inputs)
