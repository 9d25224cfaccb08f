"""What a structured reply must be."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """What the reply must be."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["function", "class"]
    good: bool


STRUCTURED_TOKENS = 200
"""More than an `Answer` has."""


def checked(found: Any) -> str:
    """An `Answer` as text, from the object or its JSON."""
    if isinstance(found, str):
        return Answer.model_validate_json(found).model_dump_json()
    return Answer.model_validate(found).model_dump_json()
