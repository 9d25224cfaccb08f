"""The machine that takes a reply apart, whatever the format.

It is in one state of a graph and goes on with the text as it comes. It holds back only what may
be the beginning of a marker, a field that names something of a call, and white space before a
marker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from server.conversation.parsing.bare_arguments import BareArgumentsReader
from server.conversation.parsing.fields import FieldReader
from server.conversation.parsing.format import (
    CONTENT,
    REASONING,
    BareArguments,
    Between,
    Exit,
    Field,
    JsonArguments,
    JsonCalls,
    PythonCalls,
    Start,
    State,
    Text,
)
from server.conversation.parsing.graph import MAX_FIELD, Awaited, Graph, has_sign
from server.conversation.parsing.json_calls import JsonArgumentsReader, JsonCallsReader
from server.conversation.parsing.json_scan import JsonScan
from server.conversation.parsing.output import EventKind, Output
from server.conversation.parsing.python_calls import PythonCallsReader, PythonScan
from server.conversation.parsing.values import ToolTypes

MAX_WAITING = 128
"""So much of a call's head may wait for its next sign."""
_SPACES = " \t\r\n"
_CLOSERS = re.compile(r"[ \t\r\n}\]]*[}\]]")

Flow = EventKind | Literal["value"]
"""What text is that flows; a `value` is given out once it is complete."""
BodyReader = JsonArgumentsReader | JsonCallsReader | PythonCallsReader | BareArgumentsReader


class Machine:
    """Takes one reply apart.

    Args:
        types: what the schemas of the request's tools say of arguments.
        state: the state to begin in.
        is_held_to_calls: the reply is calls alone, beside thoughts.

    Attributes:
        output: where events and spans go.
        flows: whether `flow` may take what comes next.
        waits: what is held back, and what follows it, is not known before a next sign; it
            is the head of a call, or a marker's beginning, and no reasoning.
        is_thinking: whether what comes next is reasoning, up to a marker.
        has_thought: whether it has been, at any time since this was set to false.
    """

    def __init__(
        self, graph: Graph, types: ToolTypes, state: str, *, is_held_to_calls: bool = False
    ) -> None:
        self.output = Output()
        self.flows = self.waits = self.is_thinking = self.has_thought = False
        self._graph = graph
        self._is_held_to_calls = is_held_to_calls
        self._is_tagged = graph.reasoning is not None and not graph.reasoning.states
        self._fields = FieldReader(types, self.output)
        self._held = ""
        self._home = CONTENT  # where text belongs that only seemed to be a call
        self._is_marked = False  # a marker led to the call that is read
        self._awaited: Awaited | Literal["sign"] | None = None
        self._is_blank = False  # nothing but white space since the last marker
        self._alarms: tuple[str, ...] | None = None  # characters that may change the state
        self._scan: JsonScan | PythonScan | None = None  # arguments that go on
        self._holds_space = False
        self._sink: list[str] | None = None  # where a value that flows is collected
        self._kind: Flow = "content"
        self._skips = False  # white space is dropped until something else comes
        self._enter(state)
        self._settle()

    @property
    def is_holding(self) -> bool:
        """Whether text is held back, which may turn out to be anything."""
        return bool(self._held)

    def flow(self, text: str) -> Flow | None:
        """Go on with text that changes nothing but the place in it, which most texts do.

        Args:
            text: not empty, and it has no special token.

        Returns:
            the kind of the event that all of the text is, or `value`; it is not among the events,
            and its stretch not among the spans. None where the text is to be fed.
        """
        if self._awaited is not None:
            return self._wait(text)
        if self._alarms is not None:
            for char in self._alarms:
                if char in text:
                    return None
            if self._holds_space and text[-1] in _SPACES:
                return None
            self._is_blank = False
        elif self._scan is None or not self._scan.pass_by(text):
            return None
        if self._sink is not None:
            self._sink.append(text)
        self.output.position += len(text)
        return self._kind

    def feed(self, text: str) -> None:
        """Go on with the text."""
        if self._held:
            text = self._held + text
        at, end_of_text = 0, len(text)
        while at < end_of_text:
            node = self._node
            end = self._step(self, node.state, text, at)
            if end == at and node is self._node:
                break
            at = end
        self._held = text[at:]
        self._settle()

    def _what_is_awaited(self) -> Awaited | Literal["sign"] | None:
        """What must come before more is known, if that is known and no text may flow."""
        held = self._held
        if self._home == REASONING and self.output.is_uncertain:
            return None  # what is held back may be reasoning
        if not self._node.is_body:
            if (awaited := self._node.awaited) is None:
                return "marker" if held and not self.is_thinking else None
            return awaited if not held or self._node.is_open(held) else None
        reader = self._reader
        if isinstance(reader, JsonArgumentsReader) or not reader.is_in_head:
            return None
        return None if has_sign(held) else "sign"

    def _wait(self, text: str) -> Flow | None:
        """Hold more back, if that is all that can be done."""
        held = self._held + text
        if self._awaited == "sign":
            if has_sign(text) or len(held) > MAX_WAITING:
                return None
        elif not self._node.is_open(held):
            return None
        self._held = held
        return "value"

    def _settle(self) -> None:
        """Note what text may come that changes nothing."""
        node, state = self._node, self._node.state
        self._alarms = self._scan = self._sink = None
        self._awaited = self._what_is_awaited()
        self.waits = self.flows = self._awaited is not None
        if self.waits or self._held:
            return
        if isinstance(state, Text):
            if not self._skips:
                self._alarms, self._holds_space = node.firsts, node.holds_space
                self._kind = state.part
        elif isinstance(state, Field):
            if state.role == "value" and self.output.is_certain:
                self._alarms, self._holds_space = node.firsts, node.holds_space
                self._kind, self._sink = "value", self._fields.value
        elif node.is_body:
            reader = self._reader
            if isinstance(reader, PythonCallsReader):
                self._scan, self._kind, self._sink = reader.scan, "value", reader.value
            else:
                self._scan, self._kind = reader.arguments, "arguments"
        self.flows = self._alarms is not None or self._scan is not None

    def finish(self) -> None:
        """Give out what is held back; nothing may be fed after."""
        held, self._held = self._held, ""
        state, output = self._node.state, self.output
        if isinstance(state, Start) and state.skips_space:
            held = held[self._pass_space(held, 0) :]
        if isinstance(state, Start | Text) and not output.is_uncertain:
            if self._is_blank and not held.strip():
                output.take(held)
            else:
                output.show(held, state.part if isinstance(state, Text) else "content")
            return
        is_inside = (output.is_certain or output.is_uncertain) and not isinstance(state, Between)
        output.take(held, "tool" if is_inside else "markup")
        if not output.is_uncertain:
            return
        if self._is_marked or self._is_held_to_calls:
            output.drop()
        else:
            output.break_off(
                self._find_marker, "reasoning" if self._home == REASONING else "content"
            )

    def _enter(self, name: str) -> None:
        """Go to a state; from what is no call, back to where it began."""
        if name == CONTENT and self.output.is_uncertain:
            name = self._home
        self._node = node = self._graph.nodes[name]
        state, output = node.state, self.output
        self._step = _STEPS[type(state)]
        self.has_thought |= name == REASONING
        self.is_thinking = name == REASONING
        if isinstance(state, Text):
            if output.is_uncertain:
                output.break_off(self._find_marker, state.part)
            else:
                self._skips = state.skips_space
            return
        if node.is_call and not (output.is_uncertain or output.is_certain):
            output.begin_call()
        if isinstance(state, Field) and state.role == "key" and output.is_uncertain:
            output.accept()
        if isinstance(state, JsonCalls):
            self._reader: BodyReader = JsonCallsReader(state, output)
        elif isinstance(state, JsonArguments):
            self._reader = JsonArgumentsReader(output)
        elif isinstance(state, PythonCalls):
            self._reader = PythonCallsReader(output)
        elif isinstance(state, BareArguments):
            self._reader = BareArgumentsReader(state.quote, self._fields)

    def _leave(self, way: Exit, before: str, marker: str, to: str | None = None) -> None:
        """Take an exit.

        Args:
            before: white space before the marker.
            to: another state than the exit says.
        """
        if way.ends_call:
            self.output.close_arguments()
        self._enter(to or way.to)
        self._is_blank = True
        self.output.take(before)
        if not way.keeps:
            self.output.take(marker, is_marker=True)

    def _read_body(
        self, state: JsonCalls | JsonArguments | PythonCalls | BareArguments, text: str, at: int
    ) -> int:
        end = self._reader.read(text, at)
        if self._reader.status == "broken":
            self._break_off()
        elif self._reader.status == "done":
            self._enter(state.after)
            self._is_blank = True
        return end

    def _break_off(self) -> None:
        """Read on as the text that a body interrupted, because it is none."""
        if not self.output.is_uncertain:
            self.output.end_call()
        self._enter(CONTENT)
        self._is_blank = True

    def _find_marker(self, text: str, at: int) -> re.Match[str] | None:
        """Find a marker in what is no call; the first characters of a call without one are none."""
        node = self._graph.nodes[CONTENT]
        while (match := node.find(text, at)) is not None and match.lastindex is not None:
            if not node.exits[match.lastindex - 1].keeps:
                return match
            at = match.end()
        return None

    def _read_text(self, state: Text, text: str, at: int) -> int:
        if self._skips:
            at = self._pass_space(text, at)
            if at == len(text):
                return at
            self._skips = False
        match = self._node.find(text, at)
        end = len(text) if match is None else match.start()
        self.output.show(text[at:end], state.part)
        self._is_blank = self._is_blank and end == at
        if match is None or match.lastindex is None:
            return end
        begin, way = match.start(match.lastindex), self._node.exits[match.lastindex - 1]
        self._home = REASONING if self._node.name == REASONING and self._is_tagged else CONTENT
        self._is_marked = not way.keeps
        if way.keeps:  # the white space belongs to the text if no call follows
            self.output.begin_call()
        self.output.take(text[end:begin])
        self._leave(way, "", text[begin : match.end()])
        return begin if way.keeps else match.end()

    def _read_start(self, state: Start, text: str, at: int) -> int:
        match = self._node.find(text, at)
        if match is None:
            self._enter(state.otherwise)
            return self._pass_space(text, at) if state.skips_space else at
        if match.lastindex is None:
            return at
        begin, way = match.start(match.lastindex), self._node.exits[match.lastindex - 1]
        if state.skips_space:
            at = self._pass_space(text, at)
        self._home, self._is_marked = CONTENT, not way.keeps
        self._leave(way, text[at:begin], text[begin : match.end()])
        return begin if way.keeps else match.end()

    def _pass_space(self, text: str, at: int) -> int:
        """Take white space as markup; returns where it ends."""
        begin = at
        while at < len(text) and text[at] in _SPACES:
            at += 1
        self.output.take(text[begin:at])
        return at

    def _read_between(self, state: Between, text: str, at: int) -> int:
        match = self._node.find(text, at)
        if match is None:
            closers = _CLOSERS.match(text, at)
            end = closers.end() if closers else at
            self.output.take(text[at:end])
            self._break_off()
            return end
        if match.lastindex is None:
            return at
        begin, way = match.start(match.lastindex), self._node.exits[match.lastindex - 1]
        self.output.take(text[at:begin])
        self._leave(way, "", text[begin : match.end()])
        return match.end()

    def _read_field(self, state: Field, text: str, at: int) -> int:
        match = self._node.find(text, at)
        if state.role == "value":
            end = len(text) if match is None else match.start()
            self._fields.value.append(text[at:end])
            self.output.take(text[at:end], "tool")
            if match is None or match.lastindex is None:
                return end
            if not state.tag:
                self._fields.add_argument(state)
            at = end
        if (len(text) if match is None else match.start()) - at > MAX_FIELD:
            self._break_off()
            return at
        if match is None or match.lastindex is None:
            return at
        begin, way = match.start(match.lastindex), self._node.exits[match.lastindex - 1]
        raw = text[at : match.start()]
        to = way.to if state.role == "value" else self._fields.take(state, raw, way.to)
        if to is None:
            self._break_off()
            return at
        self.output.take(text[match.start() : begin])
        self._leave(way, "", text[begin : match.end()], to)
        return begin if way.keeps else match.end()


_STEPS: Mapping[type[State], Callable[[Machine, Any, str, int], int]] = {
    Text: Machine._read_text,
    Field: Machine._read_field,
    Start: Machine._read_start,
    Between: Machine._read_between,
    JsonCalls: Machine._read_body,
    JsonArguments: Machine._read_body,
    PythonCalls: Machine._read_body,
    BareArguments: Machine._read_body,
}
"""How a machine goes on from a place in each kind of state; returns how far the text was read."""
