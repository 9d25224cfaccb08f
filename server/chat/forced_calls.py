"""Calls that keep to a grammar: required and named ones, and those of strict tools.

A grammar of calls is a structural tag (`server.structured.structural_tags`) put together of what
`parsing.syntax` says of the format. Required and named calls are all of the reply. With a strict
tool the reply is free until a call begins, and every call is one of the tools'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from server.chat.parsing.format import CallSyntax, ToolFormat
from server.chat.parsing.syntax import NO_ARGUMENTS, CallText, FieldText, call_text
from server.errors import ApiError, bad_request
from server.schema.chat import ChatRequest
from server.schema.tools import NamedTool, Tool
from server.structured.checker import GrammarChecker
from server.structured.spec import GrammarSpec

_ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}
_WORDS_ALONE = frozenset(("type", "title", "description", "default", "examples", "enum", "const"))
"""Keywords of a string that an argument written as it is can be held to."""

Tag = dict[str, Any]


async def calls_grammar(
    body: ChatRequest,
    tools: Sequence[Tool],
    tool_format: ToolFormat | None,
    grammars: GrammarChecker,
) -> GrammarSpec | None:
    """The grammar that a reply's calls keep to; None where they are free.

    Args:
        tools: the tools offered.
        tool_format: of the model's calls.

    Raises:
        ApiError: a schema or the format cannot be kept to; too many grammars wait.
    """
    choice = body.tool_choice
    is_forced = choice == "required" or isinstance(choice, NamedTool)
    if not tools or not (is_forced or any(tool.function.strict for tool in tools)):
        return None
    param = "tool_choice" if is_forced else "tools"
    if tool_format is None or not _can_be_kept(tool_format.syntax):
        raise bad_request(
            param, f"{param}: calls in the format of this model cannot be kept to a grammar"
        )
    named = choice.function.name if isinstance(choice, NamedTool) else None
    tags = []
    for i, tool in enumerate(tools):
        name = tool.function.name
        parameters: Mapping[str, Any] = tool.function.parameters or NO_ARGUMENTS
        if named not in (None, name):
            continue
        where = f"tools[{i}].function.parameters"
        if is_forced or tool.function.strict:
            # Alone first, so that what cannot be kept to is told by its place in the schema.
            await grammars.check(GrammarSpec("json", dict(parameters), where))
        else:
            parameters = _ANY_ARGUMENTS
        tags.append(_tag(call_text(tool_format, name, parameters), where))
    once = body.parallel_tool_calls is False
    write = _forced if is_forced else _free
    return GrammarSpec("structural_tag", write(tool_format.syntax, tags, once), param)


def _forced(syntax: CallSyntax, tags: list[Tag], once: bool) -> Tag:
    """A reply of calls alone, of one if `once`."""
    calls = _calls(syntax, tags, once)
    return {"type": "sequence", "elements": [_text(syntax.opening), calls, _text(syntax.closing)]}


def _free(syntax: CallSyntax, tags: list[Tag], once: bool) -> Tag:
    """Text in which calls may begin."""
    if syntax.opening:
        calls = _calls(syntax, tags, once)
        tags = [{"begin": syntax.opening, "content": calls, "end": syntax.closing}]
    return {
        "type": "triggered_tags",
        "triggers": [syntax.trigger],
        "tags": tags,
        "stop_after_first": once,
    }


def _calls(syntax: CallSyntax, tags: list[Tag], once: bool) -> Tag:
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": syntax.separator,
        "at_least_one": True,
        "stop_after_first": once,
    }


def _can_be_kept(syntax: CallSyntax) -> bool:
    """Whether calls are markers around JSON or texts, and all of a call is the reply's own."""
    begins = (syntax.opening or syntax.begin).startswith(syntax.trigger)
    return syntax.arguments != "python" and begins


def _tag(text: CallText, where: str) -> Tag:
    """One call of one tool."""
    if text.arguments == "json":
        content: Tag = {"type": "json_schema", "json_schema": dict(text.schema)}
    else:
        required = set(text.schema.get("required", ()))
        elements = []
        for key, field in text.fields.items():
            tag = _field(field, text.schema, f"{where}.properties.{key}")
            is_required = key in required
            elements.append(tag if is_required else {"type": "or", "elements": [tag, _text("")]})
        content = {"type": "sequence", "elements": elements or [_text("")]}
    return {"type": "tag", "begin": text.begin, "content": content, "end": text.end}


def _field(field: FieldText, whole: Mapping[str, Any], where: str) -> Tag:
    """One argument between its markers: a string as it is, any other value as JSON."""
    schema = field.schema if isinstance(field.schema, dict) else {}
    kind = schema.get("type")
    if kind != "string" and not (isinstance(kind, str) and "enum" not in schema):
        raise _not_kept(where, "its type must be one alone")
    if kind != "string":
        definitions = {key: whole[key] for key in ("$defs", "definitions") if key in whole}
        content: Tag = {"type": "json_schema", "json_schema": {**definitions, **schema}}
    elif others := sorted(schema.keys() - _WORDS_ALONE):
        raise _not_kept(where, f"{others[0]} cannot be enforced of a string")
    elif (words := schema.get("enum", [schema["const"]] if "const" in schema else None)) is None:
        content = {"type": "any_text"}
    else:
        content = {"type": "or", "elements": [_text(str(word)) for word in words]}
    return {"type": "tag", "begin": field.begin, "content": content, "end": field.end}


def _text(text: str) -> Tag:
    return {"type": "const_string", "value": text}


def _not_kept(where: str, words: str) -> ApiError:
    return bad_request(
        where, f"{where}: in this model's format of calls {words}", "grammar_refused"
    )
