"""Formats whose arguments come one by one, each a key and a value with markers around."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from server.conversation.parsing.format import CallSyntax, Exit, Field, ToolFormat
from server.conversation.parsing.learning.assemble import assemble
from server.conversation.parsing.learning.atoms import (
    Frame,
    chunks,
    common_end,
    common_start,
    frame_of,
)
from server.conversation.parsing.learning.bodies import Scenes, with_id, written_of
from server.conversation.parsing.learning.probe import KEYS
from server.conversation.parsing.learning.states import StateMaker, between, name_field

_CLOSING = "</"


@dataclass(frozen=True)
class _Fields:
    """The texts around keys and values.

    Attributes:
        name_end: after a name, before its first field.
        begin: before a key.
        assigned: between a key and a value that is a string.
        end: after a value.
        separator: between two fields.
        tag: what comes before the tags around values, where a value's end repeats its key.
        rest: after the last field.
    """

    name_end: str
    begin: str
    assigned: str
    end: str
    separator: str
    tag: str
    rest: str


def format_of_fields(scenes: Scenes) -> ToolFormat | None:
    """The format of calls that are fields; None where none is found."""
    fields = _fields_of(scenes)
    if fields is None:
        return None
    maker, written = StateMaker(), written_of(scenes)
    name_end = common_start(written.following, fields.name_end) or fields.name_end
    frame = _frame(scenes, fields)
    before, following, pattern = name_field(frame.begin, with_id(name_end))
    kinds = _kinds(scenes, fields.assigned)
    field_begin = maker.way(fields.begin, "key")
    closers = chunks(frame.end) or chunks(frame.closing)
    ends = [maker.way(piece, "after", ends_call=True) for piece in closers[:1]]
    if field_begin is None or not ends:
        return None
    own = between((field_begin, *ends))
    maker.add(own, "parameters")
    name_way = maker.way(following, "parameters")
    name_ways = (field_begin, *ends) if name_way is None else (name_way,)
    maker.add(Field("name", tuple(filter(None, name_ways)), pattern=pattern), "name")
    if not _add_values(maker, fields, kinds):
        return None
    syntax = CallSyntax(
        begin=f"{frame.begin}{{name}}{name_end}",
        end=frame.end,
        arguments="fields",
        opening=frame.opening,
        separator=frame.separator,
        closing=frame.closing,
        field_begin=f"{fields.begin}{{key}}{kinds.text}",
        field_end=fields.end,
        field_separator=fields.separator,
        json_begin=None if kinds.json == kinds.text else f"{fields.begin}{{key}}{kinds.json}",
        type_words=kinds.words,
        is_last=frame.is_alone,
        id_pattern=written.id_pattern,
    )
    return assemble(maker, replace(frame, begin=before), "name", syntax, scenes.wrappers)


def _fields_of(scenes: Scenes) -> _Fields | None:
    text, place = scenes.one.text, scenes.place
    key, value, other_key, other_value = place.fields
    name_end, assigned = text[place.name[1] : key[0]], text[key[1] : value[0]]
    middle, rest = text[value[1] : other_key[0]], text[other_value[1] :]
    begin = common_end(name_end, middle)
    name_end, middle = name_end[: len(name_end) - len(begin)], middle[: len(middle) - len(begin)]
    repeated = middle.find(KEYS[0])
    tag = ""
    if repeated >= 0:  # the value's end names its key
        if rest.count(KEYS[1]) != 1 or not begin.endswith("<") or assigned != ">":
            return None
        tag = begin.lstrip()[:-1]
        middle, rest = (t.replace(k, "{key}", 1) for t, k in zip((middle, rest), KEYS, strict=True))
    end = common_start(middle, rest)
    separator, rest = middle[len(end) :], rest[len(end) :]
    if not end.strip() or (tag and end.strip() != f"{tag}{_CLOSING}{{key}}>"):
        return None
    return _Fields(name_end, begin, assigned, end, separator, tag, rest)


def _frame(scenes: Scenes, fields: _Fields) -> Frame:
    """What is around calls, from their names to the ends of their last fields."""
    middle = None
    if scenes.two is not None:
        first, second = scenes.two.places
        middle = scenes.two.text[first.fields[-1][1] : second.name[0]]
        middle = middle.replace(KEYS[1], "{key}", 1) if fields.tag else middle
        middle = with_id(middle[len(fields.end) :])
    before = with_id(scenes.one.text[: scenes.place.name[0]])
    return frame_of(before, middle, with_id(fields.rest))


@dataclass(frozen=True)
class _Kinds:
    """What is between a key and its value.

    Attributes:
        text, json: for strings, and for other values, where `{type}` may stand for their type.
        words: by JSON type, the word for it.
        before, following: what both have around the word; empty where nothing differs.
        word: what says that a value is a string.
    """

    text: str
    json: str
    words: Mapping[str, str]
    before: str = ""
    following: str = ""
    word: str = ""


def _kinds(scenes: Scenes, assigned: str) -> _Kinds:
    others: dict[str, str] = {}
    for kind, (_, scene) in scenes.typed.items():
        place = scene.places[0]
        if place.manner == "fields":
            key, value, *_ = place.fields
            others[kind] = scene.text[key[1] : value[0]]
    if all(other == assigned for other in others.values()):
        return _Kinds(assigned, assigned, {})
    texts = [assigned, *others.values()]
    before, following = texts[0], texts[0]
    for other in texts[1:]:
        before, following = common_start(before, other), common_end(following, other)
    words = {kind: text[len(before) : len(text) - len(following)] for kind, text in others.items()}
    word = assigned[len(before) : len(assigned) - len(following)]
    is_same = len(set(words.values())) == 1
    json = before + (next(iter(words.values())) if is_same else "{type}") + following
    return _Kinds(assigned, json, {} if is_same else words, before, following, word)


def _add_values(maker: StateMaker, fields: _Fields, kinds: _Kinds) -> bool:
    """Add the states from a key to the end of its value; returns whether they are certain."""
    if fields.tag:
        opening = Exit(fields.tag + _CLOSING, to="closing")
        maker.add(Field("value", (opening,), tag=fields.tag), "value")
        ends = (Exit(">", to="parameters"),)
        maker.add(Field("closing", ends, routes=(("", "value"),), tag=fields.tag), "closing")
    else:
        end = maker.way(fields.end, "parameters")
        if end is None:
            return False
        trims = fields.assigned.endswith("\n") and fields.end.startswith("\n")
        maker.add(Field("value", (end,), trims_line=trims), "value")
        maker.add(Field("value", (end,), trims_line=trims, is_text=True), "text")
    if not kinds.word:
        way = maker.way(kinds.text, "value")
    else:
        following = chunks(kinds.following)
        if len(following) != 1:
            return False
        routes = ((re.escape(kinds.word), "text"),)
        maker.add(Field("kind", (Exit(following[0], to="value"),), routes=routes), "kind")
        way = maker.way(kinds.before, "kind")
    if way is None:
        return False
    maker.add(Field("key", (way,)), "key")
    return True
