"""Tools of a chat as clients write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_args

import orjson
from pydantic import AfterValidator, Field, WrapValidator

from server.schema.base import InnerModel, ReplayedModel, is_deeper, shown

MAX_TOOLS = 256
MAX_SCHEMA_BYTES = 256 << 10
MAX_SCHEMA_DEPTH = 64
MAX_JSON_DEPTH = 200
"""Limits of what a prompt is made of for each request."""
MAX_NAME_CHARS = 128

_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME_CHARS}}}")
_TYPES = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
_ONE = ("additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def _name(value: str) -> str:
    """Refuse a name that not every format can carry."""
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"must have 1 to {MAX_NAME_CHARS} letters, digits, '_', '-' and '.', got {shown(value)}"
        )
    return value


def _schema(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse what is no JSON schema of an object."""
    if is_deeper(value, MAX_JSON_DEPTH):
        raise ValueError(f"must be nested at most {MAX_JSON_DEPTH} levels deep")
    size = len(orjson.dumps(value))
    if size > MAX_SCHEMA_BYTES:
        raise ValueError(f"must have at most {MAX_SCHEMA_BYTES} bytes as JSON, got {size}")
    if value and value.get("type", "object") != "object":
        raise ValueError(f'must be the schema of an object: "type" is {shown(value["type"])}')
    _check_schema(value, "", MAX_SCHEMA_DEPTH)
    return value


def _check_schema(schema: Any, path: str, depth: int) -> None:
    """Raise a `ValueError` that names the first place that no schema may hold."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise ValueError(f"is no JSON schema: {path or 'it'} is {shown(schema)}, not an object")
    if not depth:
        raise ValueError(f"must be at most {MAX_SCHEMA_DEPTH} levels deep")
    _check_words(schema, path)
    for key in _ONE:
        if key in schema:
            _check_schema(schema[key], f"{path}/{key}", depth - 1)
    for key in _MAPS:
        _check_kind(schema, key, Mapping, "an object", path)
        for name, inner in schema.get(key, {}).items():
            _check_schema(inner, f"{path}/{key}/{name}", depth - 1)
    items = schema.get("items")
    lists = {key: schema[key] for key in _LISTS if key in schema}
    if isinstance(items, list):  # as older schemas have it
        lists["items"] = items
    elif "items" in schema:
        _check_schema(items, f"{path}/items", depth - 1)
    for key, inners in lists.items():
        _check_kind(schema, key, list, "a list", path)
        for i, inner in enumerate(inners):
            _check_schema(inner, f"{path}/{key}/{i}", depth - 1)


def _check_words(schema: Mapping[str, Any], path: str) -> None:
    """Check the keywords that hold no schemas."""
    types = schema.get("type", [])
    for name in types if isinstance(types, list) else [types]:
        if not isinstance(name, str) or name not in _TYPES:
            raise ValueError(f"is no JSON schema: {path}/type is {shown(name)}")
    for key in ("required", "enum"):
        _check_kind(schema, key, list, "a list", path)
    if not all(isinstance(name, str) for name in schema.get("required", ())):
        raise ValueError(f"is no JSON schema: {path}/required must hold strings")
    _check_kind(schema, "$ref", str, "a string", path)


def _check_kind(schema: Mapping[str, Any], key: str, kind: type, words: str, path: str) -> None:
    if key in schema and not isinstance(schema[key], kind):
        raise ValueError(f"is no JSON schema: {path}/{key} must be {words}")


ToolName = Annotated[str, AfterValidator(_name)]
Parameters = Annotated[dict[str, Any], AfterValidator(_schema)]


class ToolFunction(ReplayedModel):
    """A function that the model may call."""

    name: ToolName
    description: str | None = None
    parameters: Parameters | None = Field(
        None, description="The JSON schema of the arguments; by default there are none."
    )
    strict: bool | None = Field(
        None, description="Arguments always validate, unless the reply is cut off."
    )


class Tool(ReplayedModel):
    """A tool that the model may call."""

    type: Literal["function"]
    function: ToolFunction


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_NamedT = TypeVar("_NamedT", bound=_Named)


def distinct(tools: list[_NamedT]) -> list[_NamedT]:
    """Refuse two tools of one name."""
    known: set[str] = set()
    for i, tool in enumerate(tools):
        if tool.name in known:
            raise ValueError(f"must have one tool of a name: [{i}] is named {tool.name} again")
        known.add(tool.name)
    return tools


def of_type(served: str) -> Callable[[Any], Any]:
    """A validator that refuses a tool of another type, before its fields are looked at."""

    def check(value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind != served:
            raise ValueError(f"has the type {shown(kind)}, which is not served: types are {served}")
        return value

    return check


def _distinct(tools: list[Tool]) -> list[Tool]:
    distinct([tool.function for tool in tools])
    return tools


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS), AfterValidator(_distinct)]


class NamedFunction(InnerModel):
    """The name of a function."""

    name: str


class NamedTool(InnerModel):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


ToolMode = Literal["none", "auto", "required"]


class AllowedFunction(ReplayedModel):
    """The name of a tool that may be called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedFunctionSet(InnerModel):
    """Those of the tools that may be called, and whether one must be."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[AllowedFunction] = Field(min_length=1, max_length=MAX_TOOLS)


class AllowedFunctions(InnerModel):
    """Those of the tools that may be called; the prompt shows all."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctionSet


def _choice(value: Any, _: object) -> str | NamedTool | AllowedFunctions:
    """Read a choice; other words and kinds are refused in one sentence."""
    if isinstance(value, str) and value in get_args(ToolMode):
        return value
    got = shown(value)
    if isinstance(value, dict):
        got = f"an object of type {shown(value.get('type'))}"
        if value.get("type") == "function":
            if isinstance(value.get("function"), dict):
                return NamedTool.model_validate(value)
            got = f"an object whose function is {shown(value.get('function'))}"
        if value.get("type") == "allowed_tools":
            return AllowedFunctions.model_validate(value)
    raise ValueError(
        'must be "none", "auto", "required", {"type": "function", "function": {"name": ...}} or '
        f'{{"type": "allowed_tools", "allowed_tools": {{"mode": ..., "tools": [...]}}}}, got {got}'
    )


ToolChoice = Annotated[ToolMode | NamedTool | AllowedFunctions, WrapValidator(_choice)]
