"""Formats of calls by the manner in which they are written, fields aside."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from server.conversation.parsing.format import (
    BareArguments,
    CallSyntax,
    Exit,
    Field,
    JsonArguments,
    JsonCalls,
    PythonCalls,
    State,
    ToolFormat,
)
from server.conversation.parsing.learning.assemble import assemble
from server.conversation.parsing.learning.atoms import ID, Frame, common_start, frame_of
from server.conversation.parsing.learning.calls import CallPlace
from server.conversation.parsing.learning.scene import Scene
from server.conversation.parsing.learning.states import StateMaker, name_field

_NUMBER, _ANY_ID = "[0-9]{1,6}", "[A-Za-z0-9_-]{1,64}"
_PROBE_ID = re.compile(r"zqid0000\d")
_JSON_ID = re.compile(r',\s*"[^"]*":\s*"zqid0000\d"|"[^"]*":\s*"zqid0000\d",\s*')
PYTHON_NAMES = r"[A-Za-z_][\w.-]*"


@dataclass(frozen=True)
class Scenes:
    """What calls look like.

    Attributes:
        one, two: a reply of one call, and of two; None where a template shows one alone.
        typed: by JSON type, a reply of one call whose first argument has it, and that argument.
    """

    one: Scene
    two: Scene | None
    typed: dict[str, tuple[Any, Scene]]

    @property
    def place(self) -> CallPlace:
        """Where the call of a reply of one is."""
        return self.one.places[0]

    @property
    def wrappers(self) -> tuple[str, ...]:
        """What is around content."""
        return self.one.wrappers


@dataclass(frozen=True)
class Written:
    """Calls as texts around names and arguments, for grammars.

    Attributes:
        frame: around calls from their names to the ends of their arguments.
        following: between a name and its arguments.
        id_pattern: of the id in them; empty for none.
    """

    frame: Frame
    following: str
    id_pattern: str


def format_of_body(scenes: Scenes) -> ToolFormat | None:
    """The format of calls that are JSON, Python or objects with bare keys; None if it is none."""
    place, written, maker = scenes.place, written_of(scenes), StateMaker()
    body = body_frame(scenes)
    syntax = CallSyntax(
        begin=f"{written.frame.begin}{{name}}{written.following}",
        end=written.frame.end,
        opening=written.frame.opening,
        separator=written.frame.separator,
        closing=written.frame.closing,
        is_last=written.frame.is_alone,
        id_pattern=written.id_pattern,
    )
    if place.manner in ("object", "keyed", "python"):
        maker.add(_calls(place), "calls")
        if place.manner == "python":
            syntax = replace(syntax, arguments="python")
            learned = assemble(maker, body, "calls", syntax, scenes.wrappers, leads_by="[")
            return None if learned is None else replace(learned, tool_names=PYTHON_NAMES)
        return assemble(maker, body, "calls", syntax, scenes.wrappers, leads_by="[{")
    before, following, pattern = name_field(body.begin, written.following)
    arguments: State = JsonArguments(after="after")
    if place.manner == "bare":
        arguments = BareArguments(after="after", quote=place.quote)
        syntax = replace(
            syntax,
            begin=syntax.begin + "{",
            end="}" + syntax.end,
            arguments="fields",
            field_begin=f"{{key}}:{place.quote}",
            field_end=place.quote,
            field_separator=",",
            json_begin="{key}:",
            json_end="",
        )
    maker.add(arguments, "arguments")
    ways = (maker.way(following, "arguments"), Exit("{", to="arguments", keeps=True))
    maker.add(Field("name", tuple(filter(None, ways)), pattern=pattern), "name")
    return assemble(maker, replace(body, begin=before), "name", syntax, scenes.wrappers)


def _calls(place: CallPlace) -> State:
    if place.manner == "python":
        return PythonCalls(after="after")
    return JsonCalls(
        after="after",
        name_keys=place.name_keys,
        argument_keys=place.argument_keys,
        name_is_key=place.manner == "keyed",
    )


def written_of(scenes: Scenes) -> Written:
    """The texts around names and arguments."""
    one, place, middle = scenes.one.text, scenes.place, None
    following = _plain(one[place.name[1] : place.arguments[0]])
    if scenes.two is not None:
        text, places = scenes.two.text, scenes.two.places
        middle = _plain(text[places[0].arguments[1] : places[1].name[0]])
        own = [_plain(text[p.name[1] : p.arguments[0]]) for p in places]
        following = common_start(*own) or following
    before, after = _plain(one[: place.name[0]]), _plain(one[place.arguments[1] :])
    frame = frame_of(before, middle, after)
    around = frame.begin + following
    is_number = _PROBE_ID.search(one) is None
    return Written(frame, following, "" if ID not in around else _NUMBER if is_number else _ANY_ID)


def _plain(text: str) -> str:
    """A text with a mark for its id, which is left out of JSON objects: calls do well without."""
    return with_id(_JSON_ID.sub("", text))


def with_id(text: str) -> str:
    """A text with a mark for the id of a probe's call."""
    return _PROBE_ID.sub(ID, text)


def body_frame(scenes: Scenes) -> Frame:
    """What is around bodies."""
    one, place = scenes.one.text, scenes.place
    before, after = with_id(one[: place.body[0]]), with_id(one[place.body[1] :])
    if place.is_listed:
        return Frame("", before, "", after, "")
    middle = None
    if scenes.two is not None:
        first, second = scenes.two.places
        middle = with_id(scenes.two.text[first.body[1] : second.body[0]])
    return frame_of(before, middle, after)
