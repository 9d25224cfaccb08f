"""Conversations with made-up words, rendered by a template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Message = dict[str, Any]
Render = Callable[[Sequence[Message], Sequence[Mapping[str, Any]] | None, bool], str]
"""Renders messages and tools, with the beginning of a reply or without; may raise anything."""

USER, ANSWER, THOUGHT, RESULT = "zqUser", "zqAnswer", "zqThought", "zqResult"
NAMES = ("zq_first", "zq_second")
KEYS = ("zka", "zkb")
WORDS = (("zqOne", "zqTwo"), ("zqThree", "zqFour"))
"""By call and by key, the values of its arguments."""
_PLAIN_IDS = ("zqid00001", "zqid00002")  # nine characters, as some templates demand
_NAMED_IDS = tuple(f"functions.{name}:{i}" for i, name in enumerate(NAMES))


class ProbeCall(NamedTuple):
    """A call of a conversation that is rendered."""

    name: str
    arguments: dict[str, Any]
    call_id: str


@dataclass(frozen=True)
class Style:
    """How a template takes what differs between templates.

    Attributes:
        text_arguments: arguments as JSON, not as an object.
        named_ids: ids say the names of the functions, since the template writes nothing else.
    """

    text_arguments: bool = False
    named_ids: bool = False


STYLES = (Style(), Style(text_arguments=True), Style(named_ids=True))


def probe_calls(count: int, style: Style = STYLES[0]) -> list[ProbeCall]:
    """Calls with two words as arguments each."""
    ids = _NAMED_IDS if style.named_ids else _PLAIN_IDS
    return [
        ProbeCall(NAMES[i], dict(zip(KEYS, WORDS[i], strict=True)), ids[i]) for i in range(count)
    ]


def tools_of(types: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The tools that probes call; `types` are of their arguments, strings where none are said."""
    properties = {
        key: {"type": (types or {}).get(key, "string"), "description": "A value."} for key in KEYS
    }
    parameters = {"type": "object", "properties": properties, "required": list(KEYS)}
    return [
        {
            "type": "function",
            "function": {"name": name, "description": "Does it.", "parameters": parameters},
        }
        for name in NAMES
    ]


def assistant(
    content: str = "",
    calls: Sequence[ProbeCall] = (),
    thought: str = "",
    style: Style = STYLES[0],
) -> Message:
    """An assistant's message."""
    found: Message = {"role": "assistant", "content": content}
    if thought:
        # Templates read the thoughts under one of these names.
        found |= {"reasoning_content": thought, "reasoning": thought, "thinking": thought}
    if calls:
        found["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments)
                    if style.text_arguments
                    else call.arguments,
                },
            }
            for call in calls
        ]
    return found


class Prober:
    """Renders turns of the assistant, in one style.

    Attributes:
        prompt_end: what a prompt with tools ends in, from the user's words on.
    """

    def __init__(self, render: Render, style: Style) -> None:
        self.style = style
        self._render = render
        self.prompt_end = self._after_user([], generates=True) or ""

    def _after_user(
        self, turns: Sequence[Message], *, generates: bool, types: Mapping[str, str] | None = None
    ) -> str | None:
        messages = [{"role": "user", "content": USER}, *turns]
        try:
            text = self._render(messages, tools_of(types), generates)
        except Exception:  # whatever a template raises for a conversation that it refuses
            return None
        at = text.rfind(USER)
        return None if at < 0 else text[at + len(USER) :]

    def turn(
        self,
        content: str = "",
        calls: Sequence[ProbeCall] = (),
        thought: str = "",
        types: Mapping[str, str] | None = None,
    ) -> str | None:
        """The text of a conversation after the user's words, up to its end; None if refused."""
        message = assistant(content, calls, thought, self.style)
        return self._after_user([message], generates=False, types=types)

    def answered_turn(
        self, content: str = "", calls: Sequence[ProbeCall] = (), thought: str = ""
    ) -> str | None:
        """The same, with the results of the calls after it."""
        message = assistant(content, calls, thought, self.style)
        results = [
            {"role": "tool", "name": call.name, "tool_call_id": call.call_id, "content": RESULT}
            for call in calls
        ]
        return self._after_user([message, *results], generates=False)
