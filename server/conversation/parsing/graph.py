"""A format made ready for a tokenizer: its states with their markers as regular expressions.

A special token of the model that is a marker, or a part of one, becomes one character that no text
holds (half of a surrogate pair), so that machines find it by the token's id and never cut it in
two. The rest of a marker is searched for as text; an expression then also matches the beginning of
a marker where the text ends in one, which is what a machine holds back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from server.conversation.parsing.format import (
    ANSWER,
    CONTENT,
    REASONING,
    START,
    BareArguments,
    Between,
    Exit,
    Field,
    JsonArguments,
    JsonCalls,
    PythonCalls,
    ReasoningFormat,
    Start,
    State,
    Text,
    ToolFormat,
)
from server.conversation.parsing.formats.harmony import HARMONY, HARMONY_REASONING

MAX_SPACE = 8
"""White space before a marker is held back and dropped up to this length."""
MAX_BETWEEN = 64
"""White space and brackets between markers are dropped up to this length."""
MAX_FIELD = 512
"""A longer name, key or header is none."""
_SPACE, _CLOSING = r"[ \t\r\n]", r"[ \t\r\n}\]]"
_FIRST_SENTINEL = 0xD800
_LOW, _HIGH = "\ud800", "\udfff"

has_sign = re.compile(r"[)\[\]{}<>`|\\\ud800-\udfff]").search
"""Finds a bracket, or the beginning of a marker. Of a call's head that goes on without one, with
words and quotes alone, nothing new can be known; nor after the bracket that opens arguments."""

Awaited = Literal["marker", "header", "field"]
"""What else than text must come first in a state: a marker, or text up to the marker that is its
end; a header's text may be anything, any other field's only what is no marker."""
Find = Callable[[str, int], "re.Match[str] | None"]


@dataclass(frozen=True)
class Node:
    """One state of a graph.

    Attributes:
        exits: those of the state, in the order of the expression's groups.
        find: finds an exit from a place on. A match without a group is the beginning of a marker,
            or white space that may belong to one, at the text's end. `Text` and `Field` search;
            `Start` and `Between` look at the place alone.
        firsts: the characters that an exit may begin with; sentinels and white space aside.
        holds_space: white space at the text's end may belong to an exit.
        awaited: None for text that is given out as it comes.
        is_body: it has a reader of its own.
        is_call: it belongs to a call.
    """

    name: str
    state: State
    exits: tuple[Exit, ...]
    find: Find
    firsts: tuple[str, ...]
    holds_space: bool
    awaited: Awaited | None
    is_body: bool
    is_call: bool

    def is_open(self, text: str) -> bool:
        """Whether text is the beginning of what the state awaits, or of a marker, and no more."""
        match = self.find(text, 0)
        if match is not None and match.lastindex is not None:
            return False
        begin = len(text) if match is None else match.start()
        if not begin or self.awaited == "marker" or self.awaited is None:
            return not begin
        is_header = self.awaited == "header"
        return begin <= MAX_FIELD and (is_header or not has_sign(text[:begin]))


@dataclass(frozen=True)
class Graph:
    """The states of a model's replies.

    Attributes:
        sentinels: the characters that stand for special tokens, by id.
        reasoning, tools: the formats it was made of; None for what is not looked for.
    """

    nodes: Mapping[str, Node]
    sentinels: Mapping[int, str]
    reasoning: ReasoningFormat | None
    tools: ToolFormat | None

    def first_state(self, prompt_end: str, continued: str) -> str:
        """The state in which a reply begins.

        Args:
            prompt_end: the prompt's last characters.
            continued: the text of the message that the reply goes on with; empty for none.
        """
        reasoning = self.reasoning
        if reasoning is None or reasoning.states:
            return CONTENT if continued else START
        if continued.strip():
            is_open = continued.rfind(reasoning.begin) > continued.rfind(reasoning.end)
            return REASONING if is_open else CONTENT
        end = prompt_end.rstrip()
        if end.endswith(reasoning.begin):
            return REASONING
        if end.endswith(reasoning.end):
            return ANSWER
        return REASONING if reasoning.begins_open else START


def make_graph(
    reasoning: ReasoningFormat | None, tools: ToolFormat | None, special: Mapping[str, int]
) -> Graph:
    """Make the states of two formats ready.

    Args:
        special: the special tokens' ids by their texts.
    """
    states = _states(reasoning, tools)
    markers = {marker for state in states.values() for marker in _markers_of(state)}
    known = sorted(token for token in special if any(token in marker for marker in markers))
    chars = {token: chr(_FIRST_SENTINEL + i) for i, token in enumerate(known)}
    tokens = re.compile("|".join(map(re.escape, sorted(known, key=len, reverse=True))) or "(?!)")

    def coded(marker: str) -> str:
        return tokens.sub(lambda token: chars[token.group()], marker)

    return Graph(
        nodes={name: _node(name, state, coded) for name, state in states.items()},
        sentinels={special[token]: char for token, char in chars.items()},
        reasoning=reasoning,
        tools=tools,
    )


def _states(reasoning: ReasoningFormat | None, tools: ToolFormat | None) -> dict[str, State]:
    is_channels = tools == HARMONY or (reasoning is not None and bool(reasoning.states))
    states = _channels(reasoning, tools) if is_channels else _tagged(reasoning, tools)
    return states | dict(tools.states if tools is not None else {})


def _channels(reasoning: ReasoningFormat | None, tools: ToolFormat | None) -> dict[str, State]:
    """The states of replies in channels; what is not looked for is content."""
    states = dict(HARMONY_REASONING.states)
    content = states[CONTENT]
    if reasoning is None:
        states[REASONING] = content
    if tools is None:
        states["call"] = content
    return states


def _tagged(reasoning: ReasoningFormat | None, tools: ToolFormat | None) -> dict[str, State]:
    """The states of replies with markers around what is not content."""
    openers: tuple[Exit, ...] = ()
    exits: tuple[Exit, ...] = ()
    strays: tuple[Exit, ...] = ()
    states: dict[str, State] = {}
    if reasoning is not None:
        begin = Exit(reasoning.begin, to=REASONING)
        end = Exit(reasoning.end, to=ANSWER, eats_space=True)
        calls: tuple[Exit, ...] = ()
        if tools is not None:  # thoughts may end in a call
            # Space before such a call is the thoughts' own: no marker of theirs is there.
            calls = tuple(replace(way, eats_space=False) for way in tools.exits)
            calls += tuple(Exit(marker, to=REASONING) for marker in tools.strays)
        states[REASONING] = Text("reasoning", (end, begin, *calls), skips_space=True)
        exits = (begin,)
        strays = (end, *(Exit(marker, to=CONTENT) for marker in reasoning.strays))
    if tools is not None:
        openers, exits = tools.openers, (*exits, *tools.exits)
        strays = (*strays, *(Exit(marker, to=CONTENT) for marker in tools.strays))
    first = Start((*openers, *exits))
    return states | {
        START: first,
        ANSWER: replace(first, skips_space=True),
        CONTENT: Text("content", (*exits, *strays)),
    }


def _exits_of(state: State) -> tuple[Exit, ...]:
    return state.exits if isinstance(state, Start | Text | Between | Field) else ()


def _markers_of(state: State) -> list[str]:
    if isinstance(state, BareArguments):
        return [state.quote]
    tag = [state.tag] if isinstance(state, Field) else []
    return [way.marker for way in _exits_of(state)] + tag


def _node(name: str, state: State, coded: Callable[[str], str]) -> Node:
    """A state with its markers as a machine finds them."""
    is_body = isinstance(state, JsonCalls | JsonArguments | PythonCalls | BareArguments)
    # Of two markers of which one begins the other, the longer is looked for first.
    exits = tuple(sorted(_exits_of(state), key=lambda way: (not way.eats_space, -len(way.marker))))
    markers = [coded(way.marker) for way in exits]
    num_eating = sum(way.eats_space for way in exits)
    firsts = {marker[0] for marker in markers if not _LOW <= marker[0] <= _HIGH}
    if isinstance(state, BareArguments):
        state = replace(state, quote=coded(state.quote))
    elif isinstance(state, Field):
        state = replace(state, tag=coded(state.tag))
    if isinstance(state, Start | Between):
        find = re.compile(
            _anchored(markers, _SPACE if isinstance(state, Start) else _CLOSING)
        ).match
    else:
        find = re.compile(_searched(markers[:num_eating], markers[num_eating:])).search
    return Node(
        name,
        state,
        exits,
        find,
        firsts=tuple(sorted(firsts)),
        holds_space=num_eating > 0,
        awaited=_awaited(state),
        is_body=is_body,
        is_call=is_body or isinstance(state, Field),
    )


def _awaited(state: State) -> Awaited | None:
    if isinstance(state, Field):
        return None if state.role == "value" else "header" if state.role == "header" else "field"
    return "marker" if isinstance(state, Start | Between) else None


def _one_of(chars: set[str]) -> str:
    return "[" + "".join(map(re.escape, sorted(chars))) + "]" if chars else "(?!)"


def _anchored(markers: list[str], before: str) -> str:
    """An expression of a place: what may be before a marker, and the marker."""
    whole, partial = _wholes(markers, markers), "|".join(filter(None, map(_beginnings, markers)))
    whole = whole or "(?!)"
    return f"{before}{{0,{MAX_BETWEEN}}}+(?:{whole}|(?:{partial})?\\Z)"


def _searched(eating: list[str], plain: list[str]) -> str:
    """An expression of markers somewhere in a text, of which some eat the white space before."""
    markers = [*eating, *plain]
    if not markers:
        return "(?!)"
    parts = [_alternatives(plain, markers, "")]
    if eating:
        parts[:0] = [
            _alternatives(eating, markers, f"{_SPACE}{{0,{MAX_SPACE}}}"),
            f"{_SPACE}{{1,{MAX_SPACE}}}\\Z",
        ]
    # That something can begin here is found faster than what does.
    ahead = _one_of({marker[0] for marker in markers} | set(" \t\r\n" if eating else ""))
    return f"(?={ahead})(?:{'|'.join(filter(None, parts))})"


def _alternatives(markers: list[str], known: list[str], before: str) -> str:
    """An expression of whole markers, each a group, and of their beginnings at the text's end."""
    if not markers:
        return ""
    whole, partial = _wholes(markers, known), "|".join(filter(None, map(_beginnings, markers)))
    return f"{before}(?:{whole}|(?:{partial})\\Z)" if partial else f"{before}(?:{whole})"


def _wholes(markers: list[str], known: list[str]) -> str:
    """An expression of whole markers, each a group.

    One that begins another of those known is found once what follows shows that it is not the
    other.
    """
    found = []
    for marker in markers:
        rests = [other[len(marker) :] for other in known if other.startswith(marker)]
        longer = "|".join(_beginnings(rest) for rest in rests if rest)
        found.append(re.escape(marker) + (f"(?!(?:{longer})?\\Z)" if any(rests) else ""))
    return "|".join(f"({pattern})" for pattern in found)


def _beginnings(marker: str) -> str:
    """An expression of a marker's beginnings, itself and the empty one aside."""
    pattern = ""
    for char in reversed(marker[:-1]):
        pattern = re.escape(char) + (f"(?:{pattern})?" if pattern else "")
    return pattern
