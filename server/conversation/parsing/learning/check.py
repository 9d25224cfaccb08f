"""Whether a format reads back what a template writes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from server.conversation.parsing.format import ANSWER as ANSWER_STATE
from server.conversation.parsing.format import REASONING, ReasoningFormat, ToolFormat
from server.conversation.parsing.graph import make_graph
from server.conversation.parsing.learning.atoms import common_end, common_start
from server.conversation.parsing.learning.probe import (
    ANSWER,
    KEYS,
    ProbeCall,
    Prober,
    probe_calls,
    tools_of,
)
from server.conversation.parsing.machine import Machine
from server.conversation.parsing.output import Event
from server.conversation.parsing.values import ToolTypes, argument_types

_LAST_TOKEN = re.compile(r"\s*<\|[^<>\s]*\|>\s*\Z")
_TOKENS = re.compile(r"<[|｜][^<>\s]*[|｜]>")  # noqa: RUF001
_SIZES = (1 << 20, 1, 7)
"""Lengths of the chunks that a reply is read in."""
_TYPE_NAMES = {bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


class RoundTrips:
    """Reads what a template writes by the formats that it may have."""

    def __init__(
        self, prober: Prober, tools: ToolFormat, reasoning: ReasoningFormat | None
    ) -> None:
        self._prober = prober
        self._reasoning = reasoning
        self._follows_content = bool(tools.exits) or not tools.openers
        self._graph = make_graph(reasoning, tools, {})
        plain = prober.turn(ANSWER) or ""
        self._tail = plain.partition(ANSWER)[2]

    def all_pass(self) -> bool:
        """Whether replies of one call, of two, with content and of numbers are read as written."""
        style = self._prober.style
        numbers = _with_arguments({KEYS[0]: 4711, KEYS[1]: True}, probe_calls(1, style)[0])
        tries = [
            self.reads(probe_calls(1, style)),
            self.reads(probe_calls(2, style)),
            self.reads([numbers]),
        ]
        if self._follows_content:
            tries.append(self.reads(probe_calls(1, style), ANSWER))
        return True in tries and False not in tries

    def numbers_pass(self) -> bool:
        """Whether calls are read whose arguments are numbers alone: some templates write a text
        without its quotes, in a form that their models do not have."""
        calls = probe_calls(2, self._prober.style)
        own = [_with_arguments({KEYS[0]: 4711 + i}, call) for i, call in enumerate(calls)]
        return bool(self.reads(own[:1])) and self.reads(own) is not False

    def reads(self, calls: Sequence[ProbeCall], content: str = "") -> bool | None:
        """Whether a reply says what was written; None where the template does not write it."""
        values = [*calls[0].arguments.items()]
        types = {key: _TYPE_NAMES.get(type(value), "string") for key, value in values}
        text = self._prober.turn(content, calls, types=types)
        if text is None or calls[-1].name not in text:
            return None
        reply, state = self._reply(text)
        known = {
            tool["function"]["name"]: argument_types(tool["function"]["parameters"])
            for tool in tools_of(types)
        }
        events = [self._events(reply, state, known, size) for size in _SIZES]
        return all(_says(each, calls, content) for each in events)

    def _reply(self, text: str) -> tuple[str, str]:
        """What the model wrote of a turn, and the state in which it begins."""
        prompt = common_start(text, self._prober.prompt_end)
        reply = text[len(prompt) :].rstrip()
        if shared := common_end(reply, self._tail.rstrip()):
            reply = reply[: len(reply) - len(shared)]
        else:
            reply = _LAST_TOKEN.sub("", reply)
        state = self._graph.first_state(prompt, "")
        is_open = self._reasoning is not None and self._reasoning.end in reply
        return reply, ANSWER_STATE if state == REASONING and not is_open else state

    def _events(self, reply: str, state: str, types: ToolTypes, size: int) -> list[Event]:
        machine = Machine(self._graph, types, state)
        for at in range(0, len(reply), size):
            machine.feed(reply[at : at + size])
        machine.finish()
        return machine.output.events


def _with_arguments(arguments: dict[str, Any], call: ProbeCall) -> ProbeCall:
    return call._replace(arguments=arguments)


def _says(events: Sequence[Event], calls: Sequence[ProbeCall], content: str) -> bool:
    """Whether events are these calls and this content, which a template may leave out."""
    found: list[tuple[str, str]] = []
    shown = ""
    for kind, text in events:
        if kind == "call":
            found.append((text, ""))
        elif kind == "arguments":
            found[-1] = (found[-1][0], found[-1][1] + text)
        elif kind == "content":
            shown += text
    try:
        own = [(name, json.loads(arguments)) for name, arguments in found]
    except ValueError:
        return False
    wanted = [(call.name, _as_text(call.arguments)) for call in calls]
    return [(name, _as_text(arguments)) for name, arguments in own] == wanted and _TOKENS.sub(
        "", shown
    ).strip() in ("", content)


def _as_text(arguments: Any) -> Any:
    """Arguments as templates may write them all: some make a text of every value."""
    if not isinstance(arguments, dict):
        return arguments
    return {key: str(value).lower() for key, value in arguments.items()}
