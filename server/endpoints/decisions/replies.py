"""Answers as OpenAI's clients read them."""

from __future__ import annotations

from typing import Any

from server.endpoints.decisions.answers import Answer, LabelReadings
from server.endpoints.decisions.question import Question
from server.endpoints.decisions.spec import Read
from server.text.json_fragments import MINUS_INFINITY
from server.text.tokenizer import Tokenizer

Json = dict[str, Any]


def answer_of(question: Question, name: str | None, answer: Answer) -> Json:
    """One answer."""
    values = [option.value for option in question.options]
    p = answer.probabilities.tolist()
    if question.kind == "predicate":
        return {"type": "predicate", "name": name, "probability": p[0]}
    if question.kind == "choice":
        return {
            "type": "choice",
            "name": name,
            "choice": values[answer.best],
            "confidence": answer.choice_confidence,
            "probabilities": [
                {"value": value, "probability": own} for value, own in zip(values, p, strict=True)
            ],
        }
    return {
        "type": "score",
        "name": name,
        "score": answer.expected,
        "confidence": answer.score_confidence,
        "probabilities": [
            {"value": level, "label": label, "probability": own}
            for level, (label, own) in enumerate(zip(values, p, strict=True))
        ],
    }


def diagnostics_of(answer: Answer, tokenizer: Tokenizer) -> Json:
    """How far to trust an answer."""
    return {
        "label_mass": answer.label_mass,
        "argmax_is_label": answer.argmax_is_label,
        "spread": answer.spread,
        "argmax_is_stable": answer.argmax_is_stable,
        "orders": [
            _order(read, answer.readings, row, tokenizer) for row, read in enumerate(answer.reads)
        ],
    }


def _order(read: Read, readings: LabelReadings, row: int, tokenizer: Tokenizer) -> Json:
    """What was read where options were shown in one order; logprobs are in the request's."""
    best_id = int(readings.best_ids[row])
    return {
        "order": list(read.options),
        **({} if read.thought is None else {"thought": read.thought}),
        "logprobs": [_shown(value) for value in readings.logprobs[row].tolist()],
        "other_logprob": _shown(float(readings.others[row])),
        "best_other": {
            "token_id": best_id,
            "token": tokenizer.texts[best_id],
            "logprob": _shown(float(readings.best[row])),
        },
    }


def _shown(logprob: float) -> float:
    """A logprob as JSON has it: -inf is -9999."""
    return max(logprob, MINUS_INFINITY)


def usage_of(num_prompt_tokens: int, num_cached: int, num_written: int, num_thought: int) -> Json:
    """The tokens of a request; nothing is generated but thoughts.

    Args:
        num_written: tokens in blocks that later requests may find.
        num_thought: tokens of thoughts.
    """
    return {
        "input_tokens": num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": num_cached, "cache_write_tokens": num_written},
        "output_tokens": num_thought,
        "output_tokens_details": {"reasoning_tokens": num_thought},
        "total_tokens": num_prompt_tokens + num_thought,
    }
