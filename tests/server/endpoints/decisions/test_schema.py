"""The largest requests for decisions are read; larger ones are refused before they are built."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from server.endpoints.decisions.question import MAX_CHOICES, MAX_QUESTIONS
from server.endpoints.decisions.schema import DecisionsRequest
from server.endpoints.systemone.schema import SeparateRequest, SystemOneRequest
from server.errors import ApiError
from server.http.large_bodies import decode_large


def openai_body(num_questions: int) -> dict[str, Any]:
    choices = [{"value": f"{i}", "description": "x"} for i in range(MAX_CHOICES)]
    question = {"type": "choice", "instructions": "?", "choices": choices}
    return {"model": "m", "input": "x", "questions": [question] * num_questions}


def systemone_body(num_questions: int) -> dict[str, Any]:
    question = {"type": "choice", "criteria": {f"{i}": "x" for i in range(MAX_CHOICES)}}
    questions = {f"q{i}": question for i in range(num_questions)}
    return {"model": "m", "state": "x", "questions": questions}


def test_the_largest_requests_are_read() -> None:
    raw = orjson.dumps(openai_body(MAX_QUESTIONS))
    assert len(decode_large(DecisionsRequest, raw)[0].questions) == MAX_QUESTIONS
    body = systemone_body(MAX_QUESTIONS)
    found = decode_large(SystemOneRequest, orjson.dumps(body))[0]
    assert len(found.questions) == MAX_QUESTIONS
    nested = decode_large(SeparateRequest, orjson.dumps({"request": body}))[0]
    assert len(nested.request.questions) == MAX_QUESTIONS


def test_larger_ones_are_refused_before_they_are_built() -> None:
    raw = orjson.dumps(openai_body(2 * MAX_QUESTIONS))
    with pytest.raises(ApiError, match="questions must hold at most 408000 values"):
        decode_large(DecisionsRequest, raw)
