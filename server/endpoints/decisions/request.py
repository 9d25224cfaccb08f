"""A body of `/v1/decisions` as questions about a state."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from server.config import ServerConfig
from server.endpoints.decisions.question import NO, YES, Option, Question, Reading
from server.endpoints.decisions.schema import (
    DecisionPart,
    DecisionQuestion,
    DecisionsRequest,
    ReadingFields,
)
from server.endpoints.decisions.state import text_of
from server.errors import bad_request
from server.schema.priority import check_priority

PREDICATE = (Option(YES), Option(NO))
_EXPLICIT = "explicit"


def questions_of(body: DecisionsRequest) -> list[Question]:
    """The questions in order; raises `ApiError` for one without instructions."""
    return [_question(each, f"questions[{i}]") for i, each in enumerate(body.questions)]


def _question(each: DecisionQuestion, place: str) -> Question:
    instructions = text_of(each.instructions)
    if not instructions.strip():
        field = f"{place}.instructions"
        raise bad_request(field, f"{field} must not be empty")
    if each.type == "choice":
        choices = each.choices or []
        options = tuple(Option(choice.value, choice.description) for choice in choices)
        return Question("choice", instructions, options, place, f"{place}.choices")
    if each.type == "score":
        options = tuple(Option(level.label, level.description) for level in each.levels or [])
        return Question("score", instructions, options, place, f"{place}.levels")
    return Question("predicate", instructions, PREDICATE, place, place)


def reading_of(body: ReadingFields, salt: str, config: ServerConfig) -> Reading:
    """How the questions of a body are read; raises `ApiError`."""
    check_priority(body.priority, config)
    if body.reasoning is not None and body.prior is not None:
        words = "must be left out with prior: without a state there is nothing to think about"
        raise bad_request("reasoning", f"reasoning {words}")
    return Reading(
        labels=body.labels or "letters",
        num_orders=body.permute or 1,
        seed=body.seed or 0,
        budget=None if body.reasoning is None else body.reasoning.budget,
        variables=body.chat_template_kwargs or {},
        priority=body.priority or 0,
        cache_salt=salt,
    )


def salt_of(body: DecisionsRequest) -> str:
    """What the blocks of a request's prompts are shared by; a new one where nothing is reused.

    A salt alone is what other endpoints have for it. With a key, and where it looks like one with a
    key, its length goes ahead, so that no two pairs are the same.
    """
    options = body.prompt_cache_options
    if options is not None and options.mode == _EXPLICIT and not any(_breakpoints(body)):
        return secrets.token_hex(16)
    salt, key = body.cache_salt or "", body.prompt_cache_key or ""
    return f"\0{len(salt)}\0{salt}{key}" if key or salt.startswith("\0") else salt


def _breakpoints(body: DecisionsRequest) -> Iterator[DecisionPart]:
    for item in body.input:
        for part in (*(item.content or ()), *(item.output or ())):
            if part.prompt_cache_breakpoint is not None:
                yield part
