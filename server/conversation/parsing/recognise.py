"""Which formats a chat template asks for, by the texts it holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from server.conversation.parsing.format import ReasoningFormat, ToolFormat
from server.conversation.parsing.formats.known import REASONING_FORMATS, TOOL_FORMATS

_TOOLS = re.compile(r"\{[{%](?:(?![}%]\}).)*?\btools\b", re.DOTALL)
"""The name inside a template's own brackets."""


def tool_format_of(source: str) -> ToolFormat | None:
    """The format in which a model with this template writes calls; None where none is known."""
    return next((f for f in TOOL_FORMATS if _holds(source, f.recognised_by)), None)


def reasoning_format_of(source: str) -> ReasoningFormat | None:
    """The format in which a model with this template writes thoughts; None for none."""
    return next((f for f in REASONING_FORMATS if _holds(source, f.recognised_by)), None)


@lru_cache(16)
def knows_tools(source: str) -> bool:
    """Whether the template shows a model the tools it is given."""
    return _TOOLS.search(source) is not None


def _holds(source: str, alternatives: Sequence[Sequence[str]]) -> bool:
    # A template may quote its own quotation marks.
    plain = source.replace('\\"', '"')
    return any(all(text in plain for text in texts) for texts in alternatives)
