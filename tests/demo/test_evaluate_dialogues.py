"""How dialogues are led, and how their calls and answers are counted."""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import cast

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from demo import evaluate_dialogues
from demo.chat import TURN_END, prompt_of, reply_of
from demo.dialogues import Dialogue, Json, dialogues, without_thoughts
from demo.evaluate_dialogues import (
    KINDS,
    Led,
    lead,
    message_of,
    reply_graph,
    reply_texts,
    table,
)
from demo.tokens import END_OF_TEXT_ID, TURN_END_ID, VOCAB_SIZE
from tests.demo.chat_tokenizer import chat_tokenizer

NOBODY = cast(LlamaForCausalLM, None)
SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
Change = Callable[[Json], Json]


def right_replies(some: Sequence[Dialogue], change: Change) -> dict[str, str]:
    """What a model would write that knows the dialogues, by prompt."""
    replies: dict[str, str] = {}
    for dialogue in some:
        for place in dialogue.replies:
            before, turn = dialogue.turns[:place], change(dialogue.turns[place])
            for shown in (before, without_thoughts(before)):
                messages = dialogue.history + shown
                reply = reply_of(messages, turn).removesuffix(TURN_END)
                replies[prompt_of(messages, dialogue.tools)] = reply
    return replies


def led_by(monkeypatch: pytest.MonkeyPatch, change: Change) -> list[Led]:
    """Dialogues led by a model whose replies are the right ones, changed."""
    some = list(itertools.islice(dialogues(2, held_out=True), 60))
    replies = right_replies(some, change)

    def reply_texts(model: object, tokenizer: object, prompts: Sequence[str]) -> list[str]:
        return [replies[prompt] for prompt in prompts]

    monkeypatch.setattr(evaluate_dialogues, "reply_texts", reply_texts)
    led = [Led(each) for each in some]
    for half, keeps_thoughts in ((led[::2], True), (led[1::2], False)):
        lead(NOBODY, cast(Tokenizer, None), half, keeps_thoughts=keeps_thoughts)
    return led


def changed(turn: Json, field: str) -> Json:
    """A message with another answer, or with another argument in its calls."""
    if field == "thought":
        return turn | {"reasoning_content": "Whatever."}
    if field == "content" and "content" in turn:
        return turn | {"content": turn["content"] + "!"}
    if field == "arguments" and "tool_calls" in turn:
        *calls, last = turn["tool_calls"]
        arguments = dict.fromkeys(last["function"]["arguments"], "else")
        wrong = last | {"function": last["function"] | {"arguments": arguments}}
        return turn | {"tool_calls": [*calls, wrong]}
    return turn


@pytest.mark.parametrize(
    ("field", "calls_are_right", "answers_are_right"),
    [("thought", True, True), ("content", True, False), ("arguments", False, False)],
)
def test_calls_and_answers_are_compared(
    monkeypatch: pytest.MonkeyPatch, field: str, calls_are_right: bool, answers_are_right: bool
) -> None:
    led = led_by(monkeypatch, lambda turn: changed(turn, field))
    calling = [each for each in led if each.dialogue.calls]
    assert {each.kind for each in led} == set(KINDS)
    assert {each.calls_are_right for each in calling} == {calls_are_right}
    assert {not each.is_wrong for each in calling} == {answers_are_right}
    assert re.search(rf"all with calls \| {len(calling)} \| {100.0 * calls_are_right}", table(led))


def test_broken_calls_are_wrong() -> None:
    graph = reply_graph()
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    message = message_of(graph, "<think>\nI call add.\n</think>\n\n" + call)
    assert message["reasoning_content"] == "I call add."
    dialogue = Dialogue("", [], [], [{"role": "assistant", "tool_calls": message["tool_calls"]}])
    for text, is_wrong in ((call, False), (call[:-20], True), ("Hello", True), (call * 2, True)):
        led = Led(dialogue)
        led.enter(message_of(graph, text))
        assert led.is_wrong == is_wrong, text


def test_replies_are_greedy_and_end_with_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of prompts of unlike lengths gives what each gives alone, up to the first end."""
    tokenizer = chat_tokenizer()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, vocab_size=VOCAB_SIZE)).eval()
    # Small weights of a random model would give one token over and over.
    model.lm_head.weight.data.normal_(generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(evaluate_dialogues, "MAX_REPLY_TOKENS", 24)
    prompts = ["<|im_start|>user Hi<|im_end|>\n", "Add 1 and 2, then", "<think>"]
    together = reply_texts(model, tokenizer, prompts)
    for prompt, text in zip(prompts, together, strict=True):
        ids = tokenizer.encode(prompt).ids
        for _ in range(24):
            with torch.inference_mode():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] in (END_OF_TEXT_ID, TURN_END_ID):
                ids.pop()
                break
        first = len(tokenizer.encode(prompt).ids)
        assert text == tokenizer.decode(ids[first:], skip_special_tokens=False)
        assert text


@pytest.mark.parametrize("end_id", [END_OF_TEXT_ID, TURN_END_ID])
def test_an_end_is_not_in_the_text(end_id: int) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, vocab_size=VOCAB_SIZE)).eval()
    model.lm_head.weight.data.zero_()
    model.lm_head.weight.data[end_id] = 1.0
    model.model.norm.weight.data.fill_(1.0)
    model.model.embed_tokens.weight.data.fill_(1.0)  # so that every hidden state is positive
    assert reply_texts(model, chat_tokenizer(), ["Hello"]) == [""]
