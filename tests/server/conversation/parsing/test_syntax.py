"""Calls that are put together of what grammars are made of are read as the calls they are."""

from __future__ import annotations

import json

import pytest

from server.conversation.parsing.format import ToolFormat
from server.conversation.parsing.formats.known import TOOL_FORMATS
from server.conversation.parsing.syntax import call_text
from tests.server.conversation.parsing.corpus import Style
from tests.server.conversation.parsing.parsed import calls_of, parse
from tests.server.conversation.parsing.written import write

SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"at": {"type": "string"}, "n": {"type": "integer"}},
}
ARGUMENTS: dict[str, object] = {"at": "grüße it", "n": 3}


@pytest.mark.parametrize("tools", TOOL_FORMATS, ids=lambda tools: tools.names[0])
def test_a_reply_of_calls(tools: ToolFormat) -> None:
    calls: list[tuple[str, dict[str, object] | None, dict[str, object]]] = [
        ("look", SCHEMA, ARGUMENTS),
        ("stop", None, {}),
        ("look", SCHEMA, {"n": 4}),
    ]
    syntax = tools.syntax
    texts = [write(call_text(tools, name, schema), given) for name, schema, given in calls]
    numbered = [text.replace("{id}", str(i)) for i, text in enumerate(texts)]
    reply = syntax.opening + syntax.separator.join(numbered) + syntax.closing
    assert syntax.trigger in reply
    events, spans = parse(Style(tools, None, lambda calls: ""), [reply])
    found = [(name, json.loads(arguments)) for name, arguments in calls_of(events)]
    assert found == [(name, given) for name, _, given in calls]
    assert "content" not in {part for _, part in spans}
