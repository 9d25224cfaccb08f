"""Replies are right where they are the label of the right answer to the letter."""

from collections.abc import Sequence
from typing import cast

import pytest
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from demo import evaluate_decisions
from demo.chat import NO_THOUGHTS, prompt_of
from demo.decisions.drawn import decisions
from demo.evaluate_decisions import SEED, measure, share_right, table

NOBODY = cast(LlamaForCausalLM, None)
NO_WORDS = cast(Tokenizer, None)


def test_shares_are_those_of_right_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that always says yes is right where yes is, and nowhere else."""
    held_out = decisions(SEED, held_out=True)
    asked = [next(held_out) for _ in range(200)]
    prompts = {prompt_of(each.dialogue.history, (), thinks=False) for each in asked}

    def reply_texts(model: object, tokenizer: object, given: Sequence[str]) -> list[str]:
        assert set(given) <= prompts
        assert all(prompt.endswith(NO_THOUGHTS) for prompt in given)
        return ["yes" for _ in given]

    monkeypatch.setattr(evaluate_decisions, "reply_texts", reply_texts)
    answered = measure(NOBODY, NO_WORDS, 200)
    right = sum(each.label == "yes" for each in asked)
    assert share_right(answered) == pytest.approx(right / 2)
    predicates = sum(each.asked.question.kind == "predicate" for each in asked)
    lines = table(answered).splitlines()
    assert f"| predicate | {predicates} | {100 * right / predicates:.1f} % |" in lines
    assert "| choice | " in table(answered)
    assert lines[-1] == f"| all | 200 | {right / 2:.1f} % |"
