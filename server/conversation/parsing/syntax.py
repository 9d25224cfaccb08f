"""How calls of given tools are written: what a grammar of them is made of.

A grammar itself is none of this room's work. Where `CallText.begin` and the other texts hold
special tokens of the model, they are these tokens and not their characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from server.conversation.parsing.format import CallSyntax, ToolFormat

NO_ARGUMENTS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
"""The schema of a tool that says nothing of its parameters."""


@dataclass(frozen=True)
class FieldText:
    """How one argument of a call is written between markers.

    Attributes:
        schema: of the value. A string is written as it is, anything else as JSON.
    """

    begin: str
    schema: Any
    end: str


@dataclass(frozen=True)
class CallText:
    """How a call of one tool is written: `begin`, the arguments, `end`.

    Attributes:
        begin: where the call has an id, `{id}` is replaced by it.
        arguments: what is between: JSON of `schema`; the `fields` one after another; or in
            Python, `key=value` of the schema's properties with ", " between.
        schema: JSON schema of the arguments as an object.
        fields: by key, in the schema's order; empty but for `fields`.
    """

    begin: str
    arguments: Literal["json", "fields", "python"]
    schema: Mapping[str, Any]
    fields: Mapping[str, FieldText]
    end: str


def call_text(tools: ToolFormat, name: str, parameters: Mapping[str, Any] | None) -> CallText:
    """How a call of one tool is written in a format.

    What is around the calls of a reply (`opening`, `separator`, `closing`) and what shows that
    one begins (`trigger`) is in the format's `CallSyntax`, the same for every tool.

    Args:
        parameters: the tool's JSON schema.
    """
    syntax, schema = tools.syntax, parameters or NO_ARGUMENTS
    properties = schema.get("properties", {}) if syntax.arguments == "fields" else {}
    return CallText(
        begin=syntax.begin.replace("{name}", name),
        arguments=syntax.arguments,
        schema=schema,
        fields={key: _field(syntax, key, value) for key, value in properties.items()},
        end=syntax.end,
    )


def _field(syntax: CallSyntax, key: str, schema: Any) -> FieldText:
    kind = schema.get("type") if isinstance(schema, dict) else None
    begin, end = syntax.field_begin, syntax.field_end
    if isinstance(kind, str) and kind != "string":
        begin = begin if syntax.json_begin is None else syntax.json_begin
        end = end if syntax.json_end is None else syntax.json_end
        begin = begin.replace("{type}", syntax.type_words.get(kind, kind))
    return FieldText(begin.replace("{key}", key), schema, end.replace("{key}", key))
