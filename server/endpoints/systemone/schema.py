"""`POST /v1/systemone` as TypeSafe's clients write it, and what other servers add to it."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Annotated, Any, ClassVar

import orjson
from pydantic import AfterValidator, BeforeValidator, Field

from server.endpoints.decisions.question import MAX_CHOICES, MAX_LEVELS, MAX_ORDERS, MAX_QUESTIONS
from server.endpoints.decisions.schema import MAX_JSON_DEPTH, ReadingFields
from server.schema.base import BodyModel, FieldNames, TypedModel, is_deeper, shown
from server.schema.fields import MAX_NAME_CHARS, ModelName, list_or

_OPTIONAL = frozenset(("instructions",))
_BOTH = frozenset(("instructions", "criteria"))
_NOUL = frozenset(("true", "false"))


def _not_too_many(value: Any) -> Any:
    """Refuse more criteria than any question may have before each of them is looked at."""
    if isinstance(value, dict | list) and len(value) > MAX_CHOICES:
        raise ValueError(f"must have at most {MAX_CHOICES} options or levels, got {len(value)}")
    return value


def _text_or_json(value: Any) -> str:
    """A text, or JSON as text. Large bodies are read in another process: texts come back sooner."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict | list):
        raise ValueError(f"must be a text, an object or a list, got {shown(value)}")
    if is_deeper(value, MAX_JSON_DEPTH):
        raise ValueError(f"must have at most {MAX_JSON_DEPTH} levels")
    return orjson.dumps(value).decode()


def _question_text(value: Any) -> str | None:
    """Instructions as text, if there are any."""
    return None if value is None else _text_or_json(value)


class SystemOneQuestion(TypedModel):
    """A noul (is it so?), a choice (which one?), or a score (how much?)."""

    kinds: ClassVar[Mapping[str, FieldNames]] = {
        "noul": FieldNames(frozenset(), _BOTH),
        "choice": FieldNames(frozenset(("criteria",)), _OPTIONAL),
        "score": FieldNames(frozenset(("criteria",)), _OPTIONAL),
    }

    type: str
    instructions: Annotated[Any, AfterValidator(_question_text)] = Field(
        None, description="The question: a text, or JSON that is shown as text."
    )
    criteria: (
        Annotated[
            dict[str, str | None] | list[str],
            list_or(dict[str, str | None], list[str]),
            BeforeValidator(_not_too_many),
        ]
        | None
    ) = Field(
        None,
        description="Of a noul what true and false mean; of a choice each option's description or "
        "null; of a score the levels' descriptions, from the lowest to the highest.",
    )


def _checked(question: SystemOneQuestion) -> SystemOneQuestion:
    """Check the criteria of the question's type."""
    criteria = question.criteria
    match question.type:
        case "noul":
            if criteria is not None and not (
                isinstance(criteria, dict) and criteria and criteria.keys() <= _NOUL
            ):
                raise ValueError("of type noul must have criteria of true, false or both")
            if not criteria and not (question.instructions or "").strip():
                raise ValueError("of type noul needs instructions, or criteria")
        case "choice":
            _check_size(criteria, dict, "an object of options", MAX_CHOICES)
        case "score":
            _check_size(criteria, list, "a list of levels", MAX_LEVELS)
    return question


def _check_size(criteria: Any, kind: type[Sized], words: str, most: int) -> None:
    if not isinstance(criteria, kind):
        raise ValueError(f"must have criteria that are {words}, got {shown(criteria)}")
    if not 2 <= len(criteria) <= most:
        raise ValueError(f"must have criteria that are {words}, 2 to {most}, got {len(criteria)}")


def _no_assets(value: Any) -> Any:
    if value:
        raise ValueError("holds images: only text and JSON are served here")
    return value


_Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
NoImages = Annotated[Any, AfterValidator(_no_assets)]


class SystemOneRequest(ReadingFields):
    """Ask questions about a state."""

    model: ModelName
    state: Annotated[str, BeforeValidator(_text_or_json, json_schema_input_type=Any)] = Field(
        description="What the questions are about: a text, or JSON that is shown as text."
    )
    questions: Annotated[
        dict[_Name, Annotated[SystemOneQuestion, AfterValidator(_checked)]],
        Field(min_length=1, max_length=MAX_QUESTIONS),
    ] = Field(description="Questions by name.")
    instructions: str | None = Field(None, description="The text of a system's message.")
    assets: NoImages = None
    images: NoImages = None
    audio: NoImages = None
    videos: NoImages = None


class SeparateRequest(BodyModel):
    """Read each question apart, as `/v1/systemone` always does."""

    request: SystemOneRequest


class PermuteRequest(BodyModel):
    """Read one question with its options in several orders, each of which is answered."""

    request: SystemOneRequest
    question: str = Field(description="The question's name.")
    n_perm: int = Field(6, ge=1, le=MAX_ORDERS)
    seed: int = Field(0, ge=0, le=2**63 - 1)
