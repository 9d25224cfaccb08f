"""Structural tags: xgrammar's formats of text that is free up to a trigger, as Lark grammars.

What a format says that these grammars cannot, and members nobody knows, are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from server.errors import ApiError, bad_request
from server.schema.base import shown
from server.structured.json_lark import within_json
from server.structured.json_regex import JsonRegex, NotExpressibleError
from server.structured.lark import FREE_TEXT, json_value, lark_of, literal, regex

MAX_FORMATS = 4096
MAX_DEPTH = 32
_MEMBERS: dict[str, tuple[set[str], set[str]]] = {
    "const_string": ({"value"}, set()),
    "json_schema": ({"json_schema"}, set()),
    "regex": ({"pattern"}, {"json_string"}),
    "grammar": ({"grammar"}, {"json_string"}),
    "any_text": (set(), set()),
    "sequence": ({"elements"}, set()),
    "or": ({"elements"}, set()),
    "tag": ({"begin", "content", "end"}, set()),
    "triggered_tags": ({"triggers", "tags"}, {"at_least_one", "stop_after_first"}),
    "tags_with_separator": ({"tags", "separator"}, {"at_least_one", "stop_after_first"}),
}
"""Members that each format needs, and those it may have, besides its type. What `json_string` has
is the inside of a JSON string whose text keeps to the expression or grammar."""


class TagWriter:
    """Writes one structural tag.

    Args:
        special_ids: ids of special tokens by their texts; these are met as tokens, never as texts.
        whitespace: as for `with_options`.
    """

    def __init__(self, special_ids: Mapping[str, int], whitespace: str) -> None:
        self._special_ids = special_ids
        self._whitespace = whitespace
        self._rules: list[str] = []
        self._grammars: list[dict[str, str]] = []
        self._num_formats = 0
        self._writers: dict[str, Callable[[dict[str, Any], str, bool], str]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "grammar": self._grammar,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
        }

    def write(self, wanted: Any, param: str) -> list[dict[str, str]]:
        """The grammars of a format, of which the first is the whole; raises `ApiError`."""
        start = self._expression(wanted, param, True)
        lark = "\n".join([f"start: {start}", *self._rules])
        return [{"lark_grammar": lark}, *self._grammars]

    def _expression(self, wanted: Any, param: str, last: bool) -> str:
        """What stands for a format in a rule.

        Args:
            last: nothing follows it.
        """
        self._num_formats += 1
        if self._num_formats > MAX_FORMATS or param.count(".") > MAX_DEPTH:
            raise bad_request(
                param,
                f"{param}: a structural tag may have {MAX_FORMATS} formats, "
                f"{MAX_DEPTH} levels deep",
            )
        if not isinstance(wanted, dict):
            raise bad_request(param, f"{param} must be an object, got {shown(wanted)}")
        kind = wanted.get("type")
        if not isinstance(kind, str) or kind not in _MEMBERS:
            kinds = ", ".join(_MEMBERS)
            raise bad_request(f"{param}.type", f"{param}.type must be one of {kinds}")
        _check_members(wanted, kind, param)
        return self._writers[kind](wanted, param, last)

    def _rule(self, body: str, options: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def _const_string(self, wanted: dict[str, Any], param: str, last: bool) -> str:
        return self._text(_string(wanted, "value", param))

    def _json_schema(self, wanted: dict[str, Any], param: str, last: bool) -> str:
        schema, where = wanted["json_schema"], f"{param}.json_schema"
        if not isinstance(schema, dict | bool):
            raise bad_request(where, f"{where} must be a JSON schema, got {shown(schema)}")
        return self._rule(json_value(schema, self._whitespace, where))

    def _regex(self, wanted: dict[str, Any], param: str, last: bool) -> str:
        pattern, where = _string(wanted, "pattern", param), f"{param}.pattern"
        if wanted.get("json_string"):
            pattern = _within_json(lambda own: JsonRegex(own).pattern, pattern, where)
        return self._rule(regex(pattern, where))

    def _grammar(self, wanted: dict[str, Any], param: str, last: bool) -> str:
        name = f"g{len(self._grammars)}"
        where = f"{param}.grammar"
        lark = lark_of(_string(wanted, "grammar", param), where)
        if wanted.get("json_string"):
            lark = _within_json(within_json, lark, where)
        self._grammars.append({"name": name, "lark_grammar": lark})
        return f"@{name}"

    def _any_text(self, wanted: dict[str, Any], param: str, last: bool) -> str:
        if not last:
            raise bad_request(
                param, f"{param}: any_text must be last, or be the whole content of a tag"
            )
        return self._rule(FREE_TEXT)

    def _sequence(self, wanted: dict[str, Any], param: str, last: bool) -> str:
        elements, where = _several(wanted, "elements", param), f"{param}.elements"
        ends = len(elements) - 1
        parts = [
            self._expression(each, f"{where}[{i}]", last and i == ends)
            for i, each in enumerate(elements)
        ]
        return self._rule(" ".join(parts))

    def _or(self, wanted: dict[str, Any], param: str, last: bool) -> str:
        where = f"{param}.elements"
        parts = [
            self._expression(each, f"{where}[{i}]", last)
            for i, each in enumerate(_several(wanted, "elements", param))
        ]
        return self._rule(" | ".join(parts))

    def _tag(self, wanted: dict[str, Any], param: str, last: bool) -> str:
        return self._after(wanted, param, _string(wanted, "begin", param))

    def _after(self, wanted: dict[str, Any], param: str, begin: str) -> str:
        """A tag, of whose beginning only `begin` is still to be written."""
        end, content = _string(wanted, "end", param), wanted["content"]
        where = f"{param}.content"
        if isinstance(content, dict) and content == {"type": "any_text"}:
            if not end:
                raise bad_request(f"{param}.end", f"{param}.end must not be empty after any_text")
            inner = self._until(end)
        else:
            inner = f"{self._expression(content, where, False)} {self._text(end)}"
        return self._rule(f"{self._text(begin)} {inner}")

    def _until(self, text: str) -> str:
        """Free text up to a given one, that one included."""
        token_id, rest = self._leading_token(text)
        if token_id is not None:
            return f"{self._rule(FREE_TEXT)} <[{token_id}]> {self._text(rest)}"
        return self._rule(f"{FREE_TEXT} {literal(text)}", "[lazy]")

    def _triggered_tags(self, wanted: dict[str, Any], param: str, last: bool) -> str:
        if not last:
            raise bad_request(param, f"{param}: triggered_tags must be last")
        triggers, tags = _several(wanted, "triggers", param), _tags(wanted, param)
        triggered = self._rule(
            " | ".join(self._triggered(tag, where, triggers, param) for tag, where in tags)
        )
        free = self._rule(FREE_TEXT)
        once = bool(wanted.get("stop_after_first"))
        rest = "" if once else f"{triggered}* {free}"
        if wanted.get("at_least_one"):
            first = [self._tag(tag, where, False) for tag, where in tags]
            return self._rule(f"({' | '.join(first)}) {rest}")
        return self._rule(f"{triggered} | {free}" if once else rest)

    def _triggered(self, tag: dict[str, Any], where: str, triggers: list[Any], param: str) -> str:
        begin = _string(tag, "begin", where)
        for trigger in triggers:
            if isinstance(trigger, str) and trigger and begin.startswith(trigger):
                rest = self._after(tag, where, begin[len(trigger) :])
                return self._rule(f"{self._until(trigger)} {rest}")
        raise bad_request(
            f"{where}.begin", f"{where}.begin must begin with one of {param}.triggers"
        )

    def _tags_with_separator(self, wanted: dict[str, Any], param: str, last: bool) -> str:
        separator = self._text(_string(wanted, "separator", param))
        tags = [self._tag(tag, where, False) for tag, where in _tags(wanted, param)]
        one = self._rule(" | ".join(tags))
        body = one if wanted.get("stop_after_first") else f"{one} ({separator} {one})*"
        return self._rule(body if wanted.get("at_least_one") else f"({body})?")

    def _text(self, text: str) -> str:
        """A text whose special tokens are tokens."""
        parts: list[str] = []
        while text:
            at, name = self._first_special(text)
            if text[:at]:
                parts.append(literal(text[:at]))
            if name:
                parts.append(f"<[{self._special_ids[name]}]>")
            text = text[at + len(name) :]
        return " ".join(parts)

    def _first_special(self, text: str) -> tuple[int, str]:
        """Where the first special token of a text begins, and its name; the end without one."""
        found = [(text.find(name), -len(name), name) for name in self._special_ids if name in text]
        at, _, name = min(found, default=(len(text), 0, ""))
        return at, name

    def _leading_token(self, text: str) -> tuple[int | None, str]:
        """The special token that a text begins with, if it does, and what follows."""
        at, name = self._first_special(text)
        return (self._special_ids[name], text[len(name) :]) if name and at == 0 else (None, text)


def _within_json(write: Callable[[str], str], text: str, param: str) -> str:
    try:
        return write(text)
    except NotExpressibleError as error:
        words = f"{param}: {error} cannot be kept to within a JSON string"
        raise bad_request(param, words, "grammar_refused") from None


def _check_members(wanted: dict[str, Any], kind: str, param: str) -> None:
    needed, optional = _MEMBERS[kind]
    for name in sorted(needed - wanted.keys()):
        raise bad_request(f"{param}.{name}", f"{param}.{name} is required")
    neutral = {name for name, value in wanted.items() if value in (None, [])}
    for name in sorted(wanted.keys() - needed - optional - neutral - {"type"}):
        raise bad_request(f"{param}.{name}", f"{param}.{name} cannot be expressed here")


def _string(wanted: dict[str, Any], name: str, param: str) -> str:
    value = wanted.get(name)
    if not isinstance(value, str):
        raise _not("a string", f"{param}.{name}", value)
    return value


def _several(wanted: dict[str, Any], name: str, param: str) -> list[Any]:
    value = wanted[name]
    if not isinstance(value, list) or not value:
        raise _not("a list that is not empty", f"{param}.{name}", value)
    return value


def _tags(wanted: dict[str, Any], param: str) -> list[tuple[dict[str, Any], str]]:
    """The tags of a format, each with where it is."""
    found = []
    for i, tag in enumerate(_several(wanted, "tags", param)):
        where = f"{param}.tags[{i}]"
        if not isinstance(tag, dict):
            raise _not("an object", where, tag)
        _check_members({"type": "tag", **tag}, "tag", where)
        found.append((tag, where))
    return found


def _not(words: str, param: str, value: Any) -> ApiError:
    return bad_request(param, f"{param} must be {words}, got {shown(value)}")
