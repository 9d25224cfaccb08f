"""Answers as TypeSafe's clients read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from server.endpoints.decisions.answers import Answer
from server.endpoints.decisions.question import Question

Json = dict[str, Any]


def answer_of(question: Question, answer: Answer) -> Json:
    """One answer."""
    p = answer.probabilities.tolist()
    if question.kind == "score":
        levels = [str(level) for level in range(len(p))]
        return {
            "type": "score",
            "score": answer.expected,
            "confidence": answer.score_confidence,
            "legend": dict(zip(levels, [each.value for each in question.options], strict=True)),
            "probabilities": dict(zip(levels, p, strict=True)),
        }
    names = [str(option.value) for option in question.options]
    shared = {
        "confidence": answer.choice_confidence,
        "probabilities": dict(zip(names, p, strict=True)),
    }
    if question.kind == "predicate":
        return {"type": "noul", "noul": p[0], **shared}
    return {"type": "choice", "choice": names[answer.best], **shared}


def runs_of(question: Question, answer: Answer, seconds: float) -> list[Json]:
    """What each order of a question's options gave; all of them were read together."""
    names = [str(option.value) for option in question.options]
    return [
        {
            "order": [names[option] for option in read.options],
            "probabilities": dict(zip(names, p.tolist(), strict=True)),
            "choice": names[int(p.argmax())],
            "latency_ms": 1000 * seconds,
        }
        for read, p in zip(answer.reads, answer.by_order, strict=True)
    ]


def short_diagnostics(names: Sequence[str], answers: Sequence[Answer]) -> Json:
    """What vLLM's server reports of each question."""
    return {
        name: {"label_mass": answer.label_mass, "argmax_is_label": answer.argmax_is_label}
        for name, answer in zip(names, answers, strict=True)
    }
