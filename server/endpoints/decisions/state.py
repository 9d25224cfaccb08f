"""The input of a decision as the state that questions are about: one text.

A conversation is shown as what was said, since the model is asked about it and does not go on with
it. System and developer messages at its beginning are the system's message of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

from server.endpoints.decisions.question import State
from server.endpoints.decisions.schema import DecisionItem, DecisionPart
from server.errors import bad_request
from server.schema.base import shown

INSTRUCTING = frozenset(("system", "developer"))
_PLACE = "input"
_SHOWN_IDS = 8


def state_of(items: Sequence[DecisionItem]) -> State:
    """The state of an input; raises `ApiError` for an output without its call."""
    first = next((i for i, item in enumerate(items) if item.role not in INSTRUCTING), len(items))
    system = "\n\n".join(text_of(item.content) for item in items[:first]) or None
    rest = items[first:]
    if all(item.role == "user" for item in rest):
        text = "\n\n".join(text_of(item.content) for item in rest)
    else:
        text = "\n".join(_lines(rest, first))
    if not text.strip():
        raise bad_request(_PLACE, "input must hold a text besides the system's")
    return State(text, system, _PLACE)


def text_of(parts: Sequence[DecisionPart] | None) -> str:
    """Parts as one text."""
    return "\n".join(part.shown() for part in parts or ())


def _lines(items: Sequence[DecisionItem], first: int) -> list[str]:
    """A line or more for each item of a conversation."""
    names: dict[str, str] = {}
    lines = []
    for index, item in enumerate(items, first):
        if item.type == "message":
            lines.append(f"{item.role}: {text_of(item.content)}")
        elif item.output is None:
            name = ".".join(part for part in (item.namespace, item.name) if part)
            names[item.call_id or ""] = name
            given = item.arguments if item.type == "function_call" else item.input
            lines.append(f"assistant calls {name}: {given}")
        elif (called := names.get(item.call_id or "")) is not None:
            lines.append(f"{called} returns: {text_of(item.output)}")
        else:
            place = f"{_PLACE}[{index}].call_id"
            known = ", ".join(list(names)[-_SHOWN_IDS:]) or "there is none"
            raise bad_request(
                place,
                f"{place} must be that of a call before it ({known}), got {shown(item.call_id)}",
            )
    return lines
