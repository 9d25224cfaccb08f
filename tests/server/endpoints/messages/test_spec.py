"""Fields of Messages as a conversation and as what the engine generates."""

from __future__ import annotations

from typing import Any

import pytest

from server.conversation.prompt import conversation_prompt
from server.conversation.spec import ConversationSpec, ToolSpec
from server.endpoints.messages.schema import CountTokensRequest, MessagesRequest
from server.endpoints.messages.spec import message_conversation, message_spec
from server.generation.spec import GenerationSpec
from server.text.stop import StopMatcher
from tests.server.conftest import MODEL, in_process
from tests.server.endpoints.chat.tool_replies import TEMPLATE

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"name": "f", "description": "Does.", "input_schema": {"type": "object"}, "strict": True}


def body(**fields: Any) -> MessagesRequest:
    fixed = {"model": MODEL, "messages": HELLO, "max_tokens": 3}
    return MessagesRequest.model_validate({**fixed, **fields})


def conversation(**fields: Any) -> ConversationSpec:
    return message_conversation(body(**fields))


async def generation(**fields: Any) -> GenerationSpec:
    asked = body(**fields)
    async with in_process(chat_template=TEMPLATE) as site:
        prompt = await conversation_prompt(message_conversation(asked), site.context)
        return await message_spec(asked, prompt, site.context, "msg_x")


def test_tools() -> None:
    [tool] = conversation(tools=[TOOL]).tools
    assert tool == ToolSpec(
        name="f",
        description="Does.",
        parameters={"type": "object"},
        strict=True,
        place="tools[0]",
        schema_place="tools[0].input_schema",
    )


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (None, ("auto", None)),
        ({"type": "auto"}, ("auto", None)),
        ({"type": "any"}, ("required", None)),
        ({"type": "none"}, ("none", None)),
        ({"type": "tool", "name": "f"}, ("required", "f")),
    ],
)
def test_choices(choice: Any, wanted: tuple[str, str | None]) -> None:
    spec = conversation(tools=[TOOL], tool_choice=choice)
    assert (spec.tool_choice, spec.named_tool) == wanted
    assert not spec.one_call


def test_one_use_at_most() -> None:
    for kind in ("auto", "any"):
        choice = {"type": kind, "disable_parallel_tool_use": True}
        assert conversation(tools=[TOOL], tool_choice=choice).one_call


async def test_what_is_generated() -> None:
    fields = {"temperature": 0.5, "top_p": 0.25, "top_k": 3, "seed": 5}
    spec = await generation(**fields, stream=True, stop_sequences=["x"])
    assert {name: getattr(spec.params, name) for name in fields} == fields
    assert spec.form.stream
    assert spec.form.stops is not None
    match = StopMatcher(spec.form.stops).feed("axe", 0)
    assert match is not None
    assert match.stop == "x"
    assert (spec.max_tokens, spec.fits_context, spec.reply_id) == (3, True, "msg_x")


@pytest.mark.parametrize(("max_tokens", "generates"), [(0, False), (1, True)])
async def test_no_tokens_at_all(max_tokens: int, generates: bool) -> None:
    assert conversation(max_tokens=max_tokens).generates == generates
    spec = await generation(max_tokens=max_tokens)
    assert spec.form.next_token_only == (not generates)


def test_own_variables_of_the_template_come_last() -> None:
    variables = {"enable_thinking": True, "mood": "gay"}
    spec = conversation(thinking={"type": "disabled"}, chat_template_kwargs=variables)
    assert spec.template.variables == {"thinking": False, **variables}


def test_counting_asks_for_the_same_prompt() -> None:
    fields = {"model": MODEL, "messages": HELLO, "system": "x", "tools": [TOOL]}
    counted = message_conversation(CountTokensRequest.model_validate(fields))
    assert counted == conversation(**fields)


def test_formats() -> None:
    assert conversation().grammar is None
    schema = {"format": {"type": "json_schema", "schema": {"type": "array"}}, "effort": "low"}
    spec = conversation(output_config=schema)
    assert spec.grammar is not None
    assert (spec.grammar.kind, spec.grammar.value) == ("json", {"type": "array"})
    assert spec.grammar.param == "output_config.format.schema"
    assert spec.grammar.allows_calls
    assert spec.template.variables == {"reasoning_effort": "low"}


@pytest.mark.parametrize(
    ("field", "reported"),
    [
        ("named_tool", "tool_choice.name"),
        ("response_format", "output_config.format"),
        ("thinking_budget", "thinking.budget_tokens"),
        ("prompts", "messages"),
        ("messages", "messages"),
        ("max_tokens", "max_tokens"),
    ],
)
def test_errors_are_told_in_its_words(field: str, reported: str) -> None:
    error = conversation().names.refuse(field, "is bad")
    assert (error.param, error.message) == (reported, f"{reported} is bad")
