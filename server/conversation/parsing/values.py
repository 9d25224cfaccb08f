"""Arguments that a model wrote as text or as Python, made into JSON."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

import orjson

Types = frozenset[str]
ToolTypes = Mapping[str, Mapping[str, Types]]
"""By tool and by argument, the JSON types that its schema allows; an argument whose schema says
nothing of types is left out."""

_TYPE_NAMES: dict[type, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
    type(None): "null",
}
_ALIASES = {
    "float": "number",
    "int": "integer",
    "bool": "boolean",
    "str": "string",
    "dict": "object",
    "list": "array",
}
"""Python's names of types, which schemas written by hand have."""
_MAX_DEPTH = 8
_MAX_TAGS = 64
_SENTINEL = re.compile("[\ud800-\udfff]")
_PYTHON = re.compile(r"(?:True|False|None)\Z|[\[{]")
"""What may be a constant, a list or an object of Python's."""
_SIMPLE = re.compile(r"'[^'\\\x00-\x1f\x7f-\x9f\ud800-\udfff]*'")
_LOOSE = re.compile(
    r"""('''.*?'''|\"\"\".*?\"\"\"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?<![\w.])0+(?=\d)""",
    re.DOTALL,
)
"""Strings, and zeros that a number begins with."""
_UNESCAPED = re.compile(r"\\.|[\x00\n\r]", re.DOTALL)
_ESCAPES = {"\x00": r"\x00", "\n": r"\n", "\r": r"\r"}


def argument_types(parameters: Mapping[str, Any] | None) -> dict[str, Types]:
    """The JSON types of each argument, by the schema of a tool's parameters."""
    schema = parameters or {}
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    found = {key: _types(value, schema, _MAX_DEPTH) for key, value in properties.items()}
    return {key: types for key, types in found.items() if types}


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> Types:
    """The types that a schema allows; none where it does not say."""
    if not isinstance(schema, dict) or not depth:
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        named = [named]
    if isinstance(named, list):
        return frozenset(_ALIASES.get(name, name) for name in named if isinstance(name, str))
    if "const" in schema:
        return frozenset((_TYPE_NAMES[type(schema["const"])],))
    if isinstance(schema.get("enum"), list):
        return frozenset(_TYPE_NAMES[type(value)] for value in schema["enum"])
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list):
            return frozenset[str]().union(*(_types(s, root, depth - 1) for s in schema[key]))
    return _types(_referred(schema.get("$ref"), root), root, depth - 1)


def _referred(reference: Any, root: Mapping[str, Any]) -> Any:
    """The schema that a reference within the same document names; None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for name in reference[2:].split("/"):
        name = name.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def text_to_json(text: str, types: Types | None) -> str:
    """An argument that was written as text, as JSON.

    It is the JSON it spells where that has one of the types (with none given, any but a string);
    Python's constants, lists and dictionaries count too. Otherwise it is a string.
    """
    if types is not None and types <= {"string"}:
        return quoted(text)
    raw = text.strip()
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        converted = python_to_json(raw) if _PYTHON.match(raw) else None
        if converted is None:
            return quoted(text)
        raw, value = converted, orjson.loads(converted)
    name = _TYPE_NAMES[type(value)]
    if types is None:
        return quoted(text) if name == "string" else raw
    fits = name in types or (name == "integer" and "number" in types)
    fits = fits or (name == "number" and "integer" in types and value.is_integer())
    return raw if fits else quoted(text)


def tagged_to_json(text: str, tag: str) -> str:
    """A value that has parts, each between `tag<key>` and `tag</key>`, as JSON.

    Parts whose keys are all `item` are a list, others an object; a text is the JSON it spells, or
    a string. What is not well formed is one string.
    """
    pieces = re.split(rf"{re.escape(tag)}<(/?[^<>]*)>", text)
    root: list[tuple[str, Any]] = []
    stack: list[tuple[str, list[tuple[str, Any]], str]] = [("", root, "")]
    for i, piece in enumerate(pieces):
        key, parts, own = stack[-1]
        if i % 2 == 0:
            stack[-1] = (key, parts, own + piece)
        elif not piece.startswith("/"):
            if len(stack) > _MAX_TAGS:
                return quoted(without_sentinels(text))
            stack.append((piece, [], ""))
        elif piece[1:] != key or len(stack) == 1:
            return quoted(without_sentinels(text))
        else:
            stack.pop()
            stack[-1][1].append((key, _joined(parts, own)))
    return orjson.dumps(_joined(root, "")).decode() if len(stack) == 1 else quoted(text)


def _joined(parts: list[tuple[str, Any]], text: str) -> Any:
    """A value of its parts, or of its text where it has none."""
    if not parts:
        return orjson.loads(text_to_json(without_sentinels(text), None))
    if all(key == "item" for key, _ in parts):
        return [value for _, value in parts]
    return dict(parts)


def without_sentinels(text: str) -> str:
    """A text without the characters that stand for special tokens."""
    return _SENTINEL.sub("", text)


def quoted(text: str) -> str:
    """A text as a JSON string."""
    return orjson.dumps(text).decode()


class _JsonNames(ast.NodeTransformer):
    """Lets JSON's names of constants stand for Python's, and lists for sets."""

    _VALUES: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Replace a name that is a constant in JSON."""
        if node.id in self._VALUES:
            return ast.copy_location(ast.Constant(self._VALUES[node.id]), node)
        return node

    def visit_Set(self, node: ast.Set) -> ast.AST:
        """Replace a set by the list of its members in the order they were written in."""
        self.generic_visit(node)
        return ast.copy_location(ast.List(node.elts, ast.Load()), node)


def python_to_json(source: str) -> str | None:
    """A literal of Python as JSON; None for what is none, or holds what JSON does not know.

    What is JSON is that JSON, although Python knows some escapes of strings otherwise. Line breaks
    and NUL within a string stand for themselves, and zeros before a number mean nothing, as models
    write them.
    """
    if _SIMPLE.fullmatch(source):  # most strings, without the time that Python's parser takes
        return quoted(source[1:-1])
    try:
        orjson.loads(source)
    except orjson.JSONDecodeError:
        pass
    else:
        return source.strip()
    try:
        value = ast.literal_eval(_JsonNames().visit(_parsed(source.strip())))
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        orjson.loads(text)  # half of a surrogate pair, which Python's strings may hold
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return text


def _parsed(source: str) -> ast.Expression:
    """An expression of Python; where it is none, of what was meant."""
    try:
        return ast.parse(source, mode="eval")
    except (SyntaxError, ValueError):
        return ast.parse(_LOOSE.sub(_strict, source), mode="eval")


def _strict(loose: re.Match[str]) -> str:
    """What Python writes for a string with line breaks or NUL in it, or for leading zeros."""
    return _UNESCAPED.sub(
        lambda char: _ESCAPES.get(char.group(), char.group()), loose.group(1) or ""
    )
