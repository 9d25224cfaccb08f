"""The generator: a function of its seed, parts that share nothing, dialogues that are right."""

import itertools
import operator
from collections import Counter
from functools import cache

from demo.dialogues import ADD, MULTIPLY, WEATHER, Dialogue, dialogues, is_held_out

NUM = 2000


@cache
def some(*, held_out: bool = False) -> list[Dialogue]:
    return list(itertools.islice(dialogues(5, held_out=held_out), NUM))


def test_dialogues_are_a_function_of_the_seed() -> None:
    assert list(itertools.islice(dialogues(5), 50)) == some()[:50]
    assert list(itertools.islice(dialogues(6), 50)) != some()[:50]


def test_parts_share_no_content() -> None:
    learned, held_out = ({d.content for d in some(held_out=part)} for part in (False, True))
    assert not learned & held_out
    assert all(map(is_held_out, held_out))
    # Nor do earlier questions of learned dialogues tell any.
    questions = {m["content"] for d in some() for m in d.history if m["role"] == "user"}
    assert not {d.history[-1]["content"] for d in some(held_out=True)} & questions


def test_calls_are_of_offered_tools_and_name_their_parameters() -> None:
    for dialogue in some():
        offered = {
            tool["function"]["name"]: tool["function"]["parameters"]["required"]
            for tool in dialogue.tools
        }
        for call in itertools.chain.from_iterable(dialogue.calls):
            function = call["function"]
            assert list(function["arguments"]) == offered[function["name"]]


def test_tools_answer_the_calls_and_answers_tell_what_they_say() -> None:
    compute = {ADD: operator.add, MULTIPLY: operator.mul}
    for dialogue in some():
        reported = {turn["tool_call_id"]: turn for turn in dialogue.turns if turn["role"] == "tool"}
        for call in itertools.chain.from_iterable(dialogue.calls):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            answer = reported.pop(call["id"])["content"]
            if name in compute:
                assert abs(float(answer) - compute[name](*arguments.values())) < 1e-4
            else:
                assert next(iter(arguments.values())) in dialogue.history[-1]["content"]
        assert not reported
        last = dialogue.turns[-1]
        assert last["role"] == "assistant"
        if dialogue.turns[:-1]:
            assert dialogue.turns[-2]["content"] in last["content"]


def test_every_kind_and_every_order_of_tools_is_drawn() -> None:
    shapes = Counter(tuple(len(calls) for calls in d.calls) for d in some())
    for shape in ((), (1,), (2,), (1, 1), (1, 1, 1)):
        assert shapes[shape] > NUM / 50, shape
    orders = {tuple(tool["function"]["name"] for tool in d.tools) for d in some()}
    ours = [ADD, MULTIPLY, WEATHER]
    for number in range(4):
        assert set(itertools.permutations(ours, number)) <= orders
    lacking = [d for d in some() if "no tool" in d.turns[-1]["content"]]
    assert len(lacking) > NUM / 50
    assert not any(d.calls for d in lacking)
