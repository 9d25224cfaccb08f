"""Prompts come in four forms, which are brought to one: a list of texts or of id arrays."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainValidator

from engine.arrays import Int32Array
from server.generation.spec import Prompts
from server.schema.base import shown
from server.schema.ids import TokenId, id_array

MAX_PROMPTS = 8192
"""No request has more prompts than this, however high `--max-completion-prompts` is."""


def prompt_list(value: Any) -> Prompts:
    """Make a list with one text or id array a prompt; raises `ValueError` for any other form."""
    if isinstance(value, str):
        return [_text(value)]
    if not isinstance(value, list):
        raise ValueError(
            "must be a string, a list of strings, a list of token ids or a list of such lists, "
            f"got {shown(value)}"
        )
    if not value:
        raise ValueError("must not be empty, got an empty list")
    if isinstance(value[0], str | list) and len(value) > MAX_PROMPTS:
        raise ValueError(f"must be at most {MAX_PROMPTS} prompts, got {len(value)}")
    if isinstance(value[0], str):
        return [_text(item, f" at [{i}]") for i, item in enumerate(value)]
    if isinstance(value[0], list):
        return [_ids(item, f" at [{i}]") for i, item in enumerate(value)]
    return [_ids(value)]


def _text(value: Any, where: str = "") -> str:
    if not isinstance(value, str):
        raise ValueError(f"must hold strings only, as its first item is, got {shown(value)}{where}")
    if not value:
        raise ValueError(f"must not be empty, got an empty string{where}")
    return value


def _ids(value: Any, where: str = "") -> Int32Array:
    if isinstance(value, list) and not value:
        raise ValueError(f"must not be empty, got an empty list{where}")
    try:
        return id_array(value)
    except ValueError as error:
        raise ValueError(f"{error}{where}") from None


_Text = Annotated[str, Field(min_length=1)]
_Ids = Annotated[list[TokenId], Field(min_length=1)]
_Texts = Annotated[list[_Text], Field(min_length=1)]
_IdLists = Annotated[list[_Ids], Field(min_length=1)]

PromptField = Annotated[
    Prompts, PlainValidator(prompt_list, json_schema_input_type=_Text | _Texts | _Ids | _IdLists)
]
