"""Decisions worked out the long way: words, chat template and softmax by transformers in float64.

Nothing of the server is used. Every prompt is one text, every label is tokenized at its end, and a
label's probability is the product of its tokens'.
"""

from __future__ import annotations

import copy
import itertools
import json
import string
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

Body = dict[str, Any]
_CLOSING = {
    "score": "Answer with the number of one level only.",
    "choice": "Answer with the letters of one option only.",
    "options": "Answer with one of the options only.",
}


class Oracle:
    """The answers that a model folder must give."""

    def __init__(self, folder: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()

    def probabilities(self, body: Body) -> list[np.ndarray]:
        """Of each question's options in their order, for a body whose input is a text."""
        labels = body.get("labels", "letters")
        return [self.answer(body["input"], question, labels) for question in body["questions"]]

    def answer(
        self, state: str, question: Body, labels: str, thought: str | None = None
    ) -> np.ndarray:
        """The probabilities of one question's options, after a thought if there is one."""
        logprobs = self.logprobs(state, question, labels, thought)
        weights: np.ndarray = np.exp(logprobs - logprobs.max())
        weights /= weights.sum()
        return weights

    def logprobs(
        self, state: str, question: Body, labels: str, thought: str | None = None
    ) -> np.ndarray:
        """float64 [options]: the logprob of every option's label."""
        names = self._names(question, labels)
        prompt = self.prompt(state, question, names, labels, thought)
        ids = self._ids(prompt)
        found = [self._ids(prompt + name)[len(ids) :] for name in names]
        if labels == "options":
            end = self._ids(prompt + "A<|im_end|>")[-1]
            shorter = {tuple(own[:n]) for own in found for n in range(len(own))}
            found = [[*own, end] if tuple(own) in shorter else own for own in found]
        return self._read(ids, found)

    def prompt(
        self,
        state: str,
        question: Body,
        names: Sequence[str],
        labels: str,
        thought: str | None = None,
    ) -> str:
        """The whole text that a question's labels follow."""
        kind = question["type"]
        if kind == "predicate":
            lines, closing = [], "Answer with yes or no only."
        else:
            options = question["choices"] if kind == "choice" else question["levels"]
            shows_names = labels == "letters"
            lines = [
                (f"{name}: " if shows_names else "")
                + text
                + (f" - {option['description']}" if option.get("description") else "")
                for name, text, option in zip(names, _texts(question), options, strict=True)
            ]
            closing = _CLOSING["options" if labels == "options" else kind]
        words = [state, "", closing, *lines, f"Question: {question['instructions']}"]
        messages = [{"role": "user", "content": "\n".join(words)}]
        text: str = self.tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=thought is not None,
        )
        if thought is None:
            return text
        return f"{text}<think>\n{thought.rstrip()}\n</think>\n\n"

    def _names(self, question: Body, labels: str) -> list[str]:
        if question["type"] == "predicate":
            return ["yes", "no"]
        if labels == "options":
            return _texts(question)
        if question["type"] == "score":
            return [str(level) for level in range(len(question["levels"]))]
        count, letters = len(question["choices"]), string.ascii_uppercase
        if count <= 26:
            return list(letters[:count])
        pairs = ["".join(pair) for pair in itertools.product(letters, repeat=2)]
        lone = [pair for pair in pairs if len(self._ids(pair)) == 1]
        if len(lone) >= count:
            return lone[:count]
        side = next(n for n in range(27) if n * n >= count)
        grid = ["".join(pair) for pair in itertools.product(letters[:side], repeat=2)]
        return grid[:count]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    @torch.inference_mode()
    def _read(self, prompt: list[int], labels: list[list[int]]) -> np.ndarray:
        first = self.model(torch.tensor([prompt]), use_cache=True)
        tables: dict[tuple[int, ...], torch.Tensor] = {(): first.logits[0, -1].log_softmax(-1)}
        for label in labels:
            for n in range(1, len(label)):
                prefix = tuple(label[:n])
                if prefix not in tables:
                    cache = copy.deepcopy(first.past_key_values)
                    # By place: transformers 5.24 calls it `cache`, others `past_key_values`.
                    out = self.model(torch.tensor([prefix]), None, None, cache)
                    tables[prefix] = out.logits[0, -1].log_softmax(-1)
        return np.array(
            [
                sum(float(tables[tuple(label[:n])][token]) for n, token in enumerate(label))
                for label in labels
            ]
        )


def _texts(question: Body) -> list[str]:
    if question["type"] == "score":
        return [level["label"] for level in question["levels"]]
    values = [choice["value"] for choice in question["choices"]]
    if any(isinstance(value, bool) for value in values):
        return [json.dumps(value, ensure_ascii=False) for value in values]
    return values


# -- random decisions ---------------------------------------------------------------------------

_TEXT = """the invoice was paid twice 请退款 пожалуйста naïve café 🙂 refund now broken login
e-mail Straße order 4711 late angry thanks a,b It's "quoted" x=1 ¿qué? 値段"""
_WORDS = [*_TEXT.split(), "	", "", "  "]


def random_body(rng: np.random.Generator, model: str, *, most: int = 255) -> Body:
    """A body of one to four questions of every kind about a state of 5 to 120 words."""
    labels = "options" if rng.random() < 0.25 else "letters"
    questions = [_question(rng, labels, most) for _ in range(rng.integers(1, 5))]
    state = _text(rng, 5, 120)
    if rng.random() < 0.3:
        state += "\n\n" + _text(rng, 1, 30)
    return {"model": model, "input": state, "questions": questions, "labels": labels}


def _text(rng: np.random.Generator, low: int, high: int) -> str:
    words = [_WORDS[i] for i in rng.integers(0, len(_WORDS), rng.integers(low, high + 1))]
    return " ".join(words).strip() or "so"


def _question(rng: np.random.Generator, labels: str, most: int) -> Body:
    instructions = _text(rng, 2, 12)
    kind = rng.choice(["predicate", "choice", "choice", "score"])
    if kind == "predicate":
        return {"type": "predicate", "instructions": instructions}
    if kind == "score":
        levels = [{"label": f"{_text(rng, 1, 2)} {i}"} for i in range(rng.integers(2, 11))]
        return {"type": "score", "instructions": instructions, "levels": levels}
    count = int(rng.choice([2, 3, 5, 20, 26, 27, 60, most]))
    count = min(count, most, 12 if labels == "options" else 255)
    values: dict[str | bool, None] = dict.fromkeys([True, "true"] if rng.random() < 0.1 else [])
    while len(values) < count:
        word = _text(rng, 1, 2) if count < 27 else ""
        values.setdefault(f"{word}{len(values)}".strip())
        if labels == "options" and len(values) < count:
            values.setdefault(f"{list(values)[-1]} {_text(rng, 1, 1)}")  # begins like another
    choices: list[Body] = [{"value": value} for value in list(values)[:count]]
    if count < 27:
        for choice in choices[::2]:
            choice["description"] = _text(rng, 1, 5)
    return {"type": "choice", "instructions": instructions, "choices": choices}
