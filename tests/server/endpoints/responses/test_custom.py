"""Custom tools: calls with a text, held to a grammar where there is one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages.step_output import Finish
from server.endpoints.responses.custom import InputReader, as_arguments
from tests.fakes import FakeEngine, says
from tests.server.conftest import MODEL, in_process
from tests.server.endpoints.chat.chats import prompt_of
from tests.server.endpoints.chat.tool_replies import TEMPLATE, call
from tests.server.endpoints.responses.sent import LOOK, events_of, respond
from tests.server.structured.patches import GOOD, PATCH

PLAIN_TOOL: dict[str, Any] = {"type": "custom", "name": "write"}
PATCH_TOOL: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Patches.",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH},
}


def read(pieces: list[str]) -> str:
    reader = InputReader()
    return "".join([*(reader.feed(piece) for piece in pieces), reader.end()])


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted(place % (len(text) + 1) for place in places)
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@given(text=st.text(max_size=20), ascii_only=st.booleans(), places=st.lists(st.integers(0, 999)))
def test_the_text_comes_out_whatever_the_pieces(
    text: str, ascii_only: bool, places: list[int]
) -> None:
    raw = json.dumps(as_arguments(text), ensure_ascii=ascii_only)
    assert read(cut(raw, places)) == text
    assert read(cut(raw.replace(": ", " :\n  "), places)) == text or ": " in text


@pytest.mark.parametrize("raw", ['{"text": "a"}', "just a text", '["input"]', '{"input": 3}'])
@given(places=st.lists(st.integers(0, 99)))
def test_other_arguments_are_the_text(raw: str, places: list[int]) -> None:
    assert read(cut(raw, places)) == raw


@pytest.mark.parametrize("raw", ["", "{}", " {"])
def test_no_arguments_are_no_text(raw: str) -> None:
    assert read([raw]) == ""


def test_a_text_that_is_cut_off() -> None:
    assert read(['{"input": "a\\n', "b\\"]) == "a\nb"


async def test_calls_of_both_kinds() -> None:
    script = says(call("write", input='a "b"\n') + call(at="it"))
    async with in_process(FakeEngine(script), chat_template=TEMPLATE) as site:
        reply = await respond(site, tools=[PLAIN_TOOL, LOOK])
        assert prompt_of(site).startswith("[tool]write[tool]look")
        body = {"model": MODEL, "input": "x", "stream": True, "tools": [PLAIN_TOOL, LOOK]}
        events = events_of(await site.client.post("/v1/responses", json=body))
    own, other = reply["output"]
    assert (own["type"], own["name"], own["input"]) == ("custom_tool_call", "write", 'a "b"\n')
    assert other["type"] == "function_call"
    assert reply["tools"][0] == PLAIN_TOOL
    deltas = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == 'a "b"\n'
    [done] = [e for e in events if e["type"] == "response.custom_tool_call_input.done"]
    assert done["input"] == 'a "b"\n'


async def test_a_call_that_is_cut_off() -> None:
    script = says('<tool_call>{"name": "write", "arguments": {"input": "a', Finish.LENGTH)
    async with in_process(FakeEngine(script), chat_template=TEMPLATE) as site:
        [item] = (await respond(site, tools=[PLAIN_TOOL]))["output"]
    assert (item["status"], item["input"]) == ("incomplete", "a")


async def test_a_loop() -> None:
    """A call and its output go back as they came, and a stored call by its id."""
    script = says(call("write", input="x"))
    async with in_process(FakeEngine(script, max_model_len=2048), chat_template=TEMPLATE) as site:
        first = await respond(site, tools=[PLAIN_TOOL])
        [item] = first["output"]
        said = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"}
        await respond(site, tools=[PLAIN_TOOL], input=[item, said])
        replayed = prompt_of(site)
        assert replayed.endswith("[tool]done[assistant]")
        await respond(site, tools=[PLAIN_TOOL], input=[{"id": item["id"]}, said])
        assert prompt_of(site) == replayed
        await respond(site, tools=[PLAIN_TOOL], input=[said], previous_response_id=first["id"])
        assert prompt_of(site).endswith("[tool]done[assistant]")


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "custom", "name": "apply_patch"}])
async def test_a_grammar_is_kept_to(choice: Any) -> None:
    script = says(call("apply_patch", input=GOOD))
    async with in_process(FakeEngine(script, max_model_len=4096), chat_template=TEMPLATE) as site:
        reply = await respond(site, tools=[PATCH_TOOL], tool_choice=choice)
        request = site.engine.requests[-1]
        assert request.grammar is not None
        assert "T_BEGIN_PATCH" in request.grammar.source
        assert reply["output"][0]["input"] == GOOD
        assert reply["tools"] == [PATCH_TOOL]


@pytest.mark.parametrize(
    ("syntax", "definition", "words"),
    [
        ("lark", "start: a", "tools[0].format.definition"),
        ("lark", "start: start /./ | /./", "leads to itself"),
        ("regex", "a(", "regular expression"),
    ],
)
async def test_grammars_that_are_refused(syntax: str, definition: str, words: str) -> None:
    tool = PATCH_TOOL | {"format": {"type": "grammar", "syntax": syntax, "definition": definition}}
    async with in_process(chat_template=TEMPLATE) as site:
        error = await respond(site, 400, tools=[tool])
    assert words in error["message"]
    assert error["param"].startswith("tools[0].format.definition")


async def test_a_regular_expression() -> None:
    tool = PATCH_TOOL | {"format": {"type": "grammar", "syntax": "regex", "definition": "^a\n*$"}}
    async with in_process(FakeEngine(says("x")), chat_template=TEMPLATE) as site:
        await respond(site, tools=[tool], tool_choice="required")
        grammar = site.engine.requests[-1].grammar
        assert grammar is not None


async def test_allowed_tools() -> None:
    """All are shown, so that the prompt stays the same; those alone may be called."""
    names = [{"type": "custom", "name": "write"}]
    script = says(call("write", input="x"))
    async with in_process(FakeEngine(script), chat_template=TEMPLATE) as site:
        for mode in ("auto", "required"):
            choice = {"type": "allowed_tools", "mode": mode, "tools": names}
            reply = await respond(site, tools=[LOOK, PLAIN_TOOL], tool_choice=choice)
            assert reply["tool_choice"] == choice
            request = site.engine.requests[-1]
            assert prompt_of(site).startswith("[tool]look[tool]write")
            assert request.grammar is not None
            assert "write" in request.grammar.source
            assert "look" not in request.grammar.source
