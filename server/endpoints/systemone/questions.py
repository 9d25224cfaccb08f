"""A body of `/v1/systemone` as questions about a state."""

from __future__ import annotations

from server.endpoints.decisions.question import NO, YES, Option, Question, State
from server.endpoints.systemone.schema import SystemOneQuestion, SystemOneRequest
from server.errors import bad_request

UNSAID = {"noul": "Is it so?", "choice": "Which one is it?", "score": "Which level is it?"}
"""Instructions of questions that have none."""


def state_of(body: SystemOneRequest) -> State:
    """The state; raises `ApiError` for an empty one."""
    text = body.state
    if not text.strip():
        raise bad_request("state", "state must not be empty")
    return State(text, body.instructions or None, "state")


def questions_of(body: SystemOneRequest) -> list[Question]:
    """The questions in order."""
    return [_question(each, f"questions.{name}") for name, each in body.questions.items()]


def _question(each: SystemOneQuestion, place: str) -> Question:
    instructions = (each.instructions or "").strip() or UNSAID[each.type]
    criteria = each.criteria
    if each.type == "noul":
        known = criteria if isinstance(criteria, dict) else {}
        yes, no = Option(YES, known.get("true")), Option(NO, known.get("false"))
        return Question("predicate", instructions, (yes, no), place, f"{place}.criteria")
    if isinstance(criteria, dict):
        choices = tuple(Option(name, description) for name, description in criteria.items())
        return Question("choice", instructions, choices, place, f"{place}.criteria")
    levels = tuple(Option(level) for level in criteria or ())
    return Question("score", instructions, levels, place, f"{place}.criteria")
