"""Which formats a chat template asks for, by the texts it holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from server.conversation.parsing.format import ReasoningFormat, ToolFormat
from server.conversation.parsing.formats.known import REASONING_FORMATS, TOOL_FORMATS

_OPENING, _CLOSING, _TOOLS = re.compile(r"\{[{%]"), re.compile(r"[}%]\}"), re.compile(r"\btools\b")
"""A template's own brackets, and the name inside them."""


def tool_format_of(source: str) -> ToolFormat | None:
    """The format in which a model with this template writes calls; None where none is known."""
    return next((f for f in TOOL_FORMATS if _holds(source, f.recognised_by)), None)


def reasoning_format_of(source: str) -> ReasoningFormat | None:
    """The format in which a model with this template writes thoughts; None for none."""
    return next((f for f in REASONING_FORMATS if _holds(source, f.recognised_by)), None)


@lru_cache(16)
def knows_tools(source: str) -> bool:
    """Whether the template shows a model the tools it is given."""
    for part in _CLOSING.split(source):  # linear in a template that closes no bracket
        opening = _OPENING.search(part)
        if opening is not None and _TOOLS.search(part, opening.end()):
            return True
    return False


def _holds(source: str, alternatives: Sequence[Sequence[str]]) -> bool:
    # A template may quote its own quotation marks.
    plain = source.replace('\\"', '"')
    return any(all(text in plain for text in texts) for texts in alternatives)
