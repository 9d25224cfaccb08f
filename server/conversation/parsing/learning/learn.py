"""The formats of a template: a known one that reads what it writes, or one derived from it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from server.conversation.parsing.format import ReasoningFormat, ToolFormat
from server.conversation.parsing.learning.bodies import Scenes, format_of_body
from server.conversation.parsing.learning.check import RoundTrips
from server.conversation.parsing.learning.fields import format_of_fields
from server.conversation.parsing.learning.probe import (
    KEYS,
    STYLES,
    Prober,
    Render,
    probe_calls,
)
from server.conversation.parsing.learning.scene import Scene, Stage
from server.conversation.parsing.learning.thoughts import reasoning_of
from server.conversation.parsing.recognise import reasoning_format_of, tool_format_of

_TYPED: dict[str, Any] = {
    "integer": 4711,
    "number": 4711.5,
    "boolean": True,
    "array": [4711],
    "object": {"zqk": 4711},
}


class Formats(NamedTuple):
    """How a model with some template writes calls and thoughts; None for what is not known.

    Attributes:
        takes_text: the template takes the arguments of calls as JSON, and not as objects.
    """

    tools: ToolFormat | None
    reasoning: ReasoningFormat | None
    takes_text: bool = False


def formats_by_name(source: str) -> Formats:
    """The known formats that a template's words ask for."""
    return Formats(tool_format_of(source), reasoning_format_of(source))


def formats_of(source: str, render: Render, ends: Collection[str] = ()) -> Formats:
    """The formats of a template; some tens of renderings.

    Args:
        render: renders conversations by the template.
        ends: texts of the tokens that end a reply.
    """
    known = tool_format_of(source)
    weak: Formats | None = None
    reasoning = reasoning_format_of(source)
    for style in STYLES:
        prober = Prober(render, style)
        thoughts = reasoning or reasoning_of(prober)
        if known is not None:
            trips = RoundTrips(prober, known, thoughts)
            if trips.all_pass():
                return Formats(known, thoughts, style.text_arguments)
            if weak is None and trips.numbers_pass():
                weak = Formats(known, thoughts, style.text_arguments)
        learned = _learned(prober, thoughts, ends)
        if learned is None or not RoundTrips(prober, learned, thoughts).all_pass():
            continue
        if learned.syntax.leads and known is not None:
            learned = known  # what is known of a family counts more than calls without any marker
        return Formats(learned, thoughts, style.text_arguments)
    if weak is not None:
        return weak
    return Formats(
        known if not _shows_calls(render) else None,
        reasoning or reasoning_of(Prober(render, STYLES[0])),
    )


def _learned(
    prober: Prober, reasoning: ReasoningFormat | None, ends: Collection[str]
) -> ToolFormat | None:
    stage = Stage(prober, reasoning, ends)
    scenes = _scenes(stage)
    if scenes is None:
        return None
    make = format_of_fields if scenes.place.manner == "fields" else format_of_body
    return make(scenes)


def _scenes(stage: Stage) -> Scenes | None:
    style = stage.prober.style
    calls = probe_calls(2, style)
    one = stage.scene(calls[:1])
    if one is None:
        return None
    typed: dict[str, tuple[Any, Scene]] = {}
    if one.places[0].manner == "fields":
        for kind, value in _TYPED.items():
            arguments = {KEYS[0]: value, KEYS[1]: "zqTwo"}
            scene = stage.scene([calls[0]._replace(arguments=arguments)], {KEYS[0]: kind})
            if scene is not None:
                typed[kind] = (value, scene)
    return Scenes(one, stage.scene(calls), typed)


def _shows_calls(render: Render) -> bool:
    """Whether a template writes a call that is in the conversation."""
    calls = probe_calls(1)
    return any(calls[0].name in (Prober(render, style).turn("", calls) or "") for style in STYLES)
