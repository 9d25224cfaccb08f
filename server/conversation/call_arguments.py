"""The grammar of one call: its name, and arguments that keep to a schema in the model's format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from server.conversation.parsing.format import ToolFormat
from server.conversation.parsing.syntax import NO_ARGUMENTS, CallText, FieldText, call_text
from server.conversation.spec import InputGrammar, ToolSpec
from server.errors import ApiError, bad_request
from server.schema.base import field_path
from server.structured.checker import GrammarChecker
from server.structured.json_regex import without_anchors
from server.structured.spec import GrammarSpec

Tag = dict[str, Any]

_WORDS_ALONE = frozenset(("type", "title", "description", "default", "examples", "enum", "const"))
"""Keywords of a string that an argument written as it is can be held to."""
_ROOT = frozenset(
    (
        *("type", "properties", "required", "additionalProperties", "$defs", "definitions"),
        *("title", "description", "default", "examples", "$schema", "$id", "$comment"),
    )
)
"""Keywords of a schema that arguments written one by one can be held to."""
_KEYS = {"fields": re.compile(r"[^<>\n]+"), "python": re.compile(r"[^\W\d]\w*")}
"""Keys that can be written."""


class ArgumentsWriter:
    """Writes the calls of one request's tools as tags.

    Args:
        drops_keywords: keywords that cannot be kept to are dropped, of strict tools too.

    Attributes:
        ignored: where these were.
    """

    def __init__(
        self, tool_format: ToolFormat, grammars: GrammarChecker, *, drops_keywords: bool
    ) -> None:
        self.ignored: list[str] = []
        self._format = tool_format
        self._grammars = grammars
        self._drops_keywords = drops_keywords

    async def call(self, tool: ToolSpec, *, is_strict: bool) -> Tag:
        """A call of one tool.

        Args:
            is_strict: its schema is kept to; else as far as it can be.

        Raises:
            ApiError: a strict tool's schema cannot be kept to.
        """
        schema: Mapping[str, Any] = tool.parameters or NO_ARGUMENTS
        where = tool.schema_place
        drops = self._drops_keywords or not is_strict
        # Alone first, so that what cannot be kept to is named by its place in the schema.
        spec = GrammarSpec("json", dict(schema), where, lenient=drops)
        try:
            checked = await self._grammars.check(spec)
        except ApiError as error:
            if is_strict or error.status != 400:
                raise
            self.ignored.append(where)
            keys = (tool.parameters or NO_ARGUMENTS).get("properties", {})
            schema = {"type": "object", "properties": {key: {} for key in keys}}
        else:
            self.ignored += checked.ignored
            schema = schema if checked.reduced is None else checked.reduced
        text = call_text(self._format, tool.name, schema)
        begin, has_id, after_id = text.begin.partition("{id}")
        if (grammar := tool.input_grammar) is not None:
            content = await self._input(text, grammar)
        else:
            content = self._arguments(text, where, drops)
        if has_id:
            call_id: Tag = {"type": "regex", "pattern": self._format.syntax.id_pattern}
            content = in_order(call_id, const(after_id), content)
        return {"type": "tag", "begin": begin, "content": content, "end": text.end}

    async def _input(self, text: CallText, grammar: InputGrammar) -> Tag:
        """The only argument of a tool, which is held to a grammar of its own."""
        is_raw = text.arguments == "fields"
        lark = grammar.syntax == "lark"
        tag: Tag = {"type": "grammar", "grammar": grammar.definition}
        if not lark:
            tag = {"type": "regex", "pattern": without_anchors(grammar.definition)}
        tag["json_string"] = not is_raw
        # Alone first, so that what is wrong with it is named by its place.
        await self._grammars.check(GrammarSpec("structural_tag", tag, grammar.place))
        if is_raw:
            field = text.fields[grammar.argument]
            return {"type": "tag", "begin": field.begin, "content": tag, "end": field.end}
        if text.arguments == "python":
            return in_order(const(f'{grammar.argument}="'), tag, const('"'))
        return in_order(const(f'{{"{grammar.argument}": "'), tag, const('"}'))

    def _arguments(self, text: CallText, where: str, drops: bool) -> Tag:
        if text.arguments == "json":
            return {"type": "json_schema", "json_schema": dict(text.schema)}
        keys: Mapping[str, Any] = text.schema.get("properties", {})
        required = list(text.schema.get("required", ()))
        for key in sorted(text.schema.keys() - _ROOT):
            self._refuse(field_path((where, key)), "it cannot be enforced", drops)
        for key in sorted(set(required) - keys.keys()):
            self._refuse(field_path((where, "required")), f"it names {key}, no property", drops)
        tags: list[tuple[Tag, bool]] = []
        for key, value in keys.items():
            place = field_path((where, "properties", key))
            if not _KEYS[text.arguments].fullmatch(key):
                self._refuse(place, "its name cannot be written", drops)
            elif text.arguments == "fields":
                tag = self._field(text.fields[key], text.schema, place, drops)
                tags.append((tag, key in required))
            else:
                content = _python_value(value, text.schema)
                tags.append((in_order(const(f"{key}="), content), key in required))
        separator = self._format.syntax.field_separator
        if text.arguments == "python" or separator:
            return _separated(tags, separator or ", ")
        return in_order(*[tag if needed else _maybe(tag) for tag, needed in tags])

    def _field(self, field: FieldText, whole: Mapping[str, Any], where: str, drops: bool) -> Tag:
        """One argument between its markers: a string as it is, any other value as JSON."""
        schema = field.schema if isinstance(field.schema, dict) else {}
        kind = schema.get("type")
        if kind != "string" and not (isinstance(kind, str) and "enum" not in schema):
            self._refuse(where, "its type must be one alone", drops)
            content: Tag = {"type": "any_text"}
        elif kind != "string":
            content = _json(schema, whole)
        else:
            for other in sorted(schema.keys() - _WORDS_ALONE):
                self._refuse(where, f"{other} cannot be enforced of a string", drops, other)
            content = {"type": "any_text"}
            words = schema.get("enum", [schema["const"]] if "const" in schema else None)
            if words == []:
                self._refuse(where, "it has no value", drops)
            elif words is not None:
                content = either(*(const(str(word)) for word in words))
        return {"type": "tag", "begin": field.begin, "content": content, "end": field.end}

    def _refuse(self, where: str, words: str, drops: bool, keyword: str | None = None) -> None:
        """Note what is not kept to, or raise a 400 for it."""
        if not drops:
            message = f"{where}: in this model's format of calls {words}"
            raise bad_request(where, message, "grammar_refused")
        self.ignored.append(where if keyword is None else field_path((where, keyword)))


def const(text: str) -> Tag:
    """A text as it is."""
    return {"type": "const_string", "value": text}


def either(*tags: Tag) -> Tag:
    """One of some tags."""
    return {"type": "or", "elements": list(tags)}


def in_order(*tags: Tag) -> Tag:
    """Tags one after the other; an empty text where there are none."""
    return {"type": "sequence", "elements": list(tags) or [const("")]}


def _json(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> Tag:
    """A value as JSON, of a schema within another."""
    definitions = {key: whole[key] for key in ("$defs", "definitions") if key in whole}
    return {"type": "json_schema", "json_schema": {**definitions, **schema}}


def _python_value(schema: Any, whole: Mapping[str, Any]) -> Tag:
    """A value in Python: JSON, which readers take too, or what Python alone writes."""
    schema = schema if isinstance(schema, dict) else {}
    written: list[Tag] = []
    kind, words = schema.get("type"), schema.get("enum")
    if schema.keys() <= _WORDS_ALONE and "const" not in schema:
        if kind == "boolean" and words is None:
            return either(const("True"), const("False"))
        if kind == "string" and words is None:
            written = [{"type": "regex", "pattern": r"'[^'\\\x00-\x1F\x7F]*'"}]
        elif kind in ("string", None) and isinstance(words, list):
            written = [const(f"'{word}'") for word in words if _is_plain(word)]
    return either(_json(schema, whole), *written)


def _is_plain(word: Any) -> bool:
    return isinstance(word, str) and word.isprintable() and "'" not in word and "\\" not in word


def _separated(tags: list[tuple[Tag, bool]], separator: str) -> Tag:
    """Arguments in their order with a separator between, those that are not needed maybe.

    After the first that comes each is led by the separator; up to the first that is needed, any may
    be the first.
    """
    firsts: list[Tag] = []
    for i, (tag, is_needed) in enumerate(tags):
        rest = tags[i + 1 :]
        later = [
            each if needed else _maybe(each)
            for each, needed in ((in_order(const(separator), t), needed) for t, needed in rest)
        ]
        firsts.append(in_order(tag, *later))
        if is_needed:
            break
    else:
        firsts.append(const(""))
    return either(*firsts)


def _maybe(tag: Tag) -> Tag:
    return either(tag, const(""))
