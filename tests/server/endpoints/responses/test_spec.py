"""Fields of Responses as a conversation and as what the engine generates."""

from __future__ import annotations

from typing import Any

import pytest

from server.conversation.prompt import conversation_prompt
from server.conversation.spec import ConversationSpec, ToolSpec
from server.endpoints.responses.history import History
from server.endpoints.responses.schema import ResponsesRequest
from server.endpoints.responses.spec import response_conversation, response_spec
from server.generation.spec import GenerationSpec
from tests.server.conftest import in_process
from tests.server.endpoints.chat.tool_replies import TEMPLATE

TOOL = {
    "type": "function",
    "name": "f",
    "description": "Does.",
    "parameters": {"type": "object"},
    "strict": True,
}


def body(**fields: Any) -> ResponsesRequest:
    return ResponsesRequest.model_validate({"input": "hello", **fields})


def conversation(**fields: Any) -> ConversationSpec:
    asked = body(**fields)
    return response_conversation(asked, History(asked.input, 0, (), ()))


async def generation(**fields: Any) -> GenerationSpec:
    asked = body(**fields)
    async with in_process(chat_template=TEMPLATE) as site:
        history = History(asked.input, 0, (), ())
        prompt = await conversation_prompt(response_conversation(asked, history), site.context)
        return await response_spec(asked, prompt, site.context, "resp_x")


def test_tools() -> None:
    [tool] = conversation(tools=[TOOL]).tools
    assert tool == ToolSpec(
        name="f",
        description="Does.",
        parameters={"type": "object"},
        strict=True,
        place="tools[0]",
        schema_place="tools[0].parameters",
    )


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        (None, ("auto", None)),
        *((word, (word, None)) for word in ("auto", "none", "required")),
        ({"type": "function", "name": "f"}, ("required", "f")),
    ],
)
def test_choices(choice: Any, meant: tuple[str, str | None]) -> None:
    spec = conversation(tools=[TOOL], tool_choice=choice)
    assert (spec.tool_choice, spec.named_tool) == meant


def test_the_conversation() -> None:
    fields = {"parallel_tool_calls": False, "chat_template_kwargs": {"mood": "gay"}}
    spec = conversation(**fields, model="m", reasoning={"effort": "low"})
    assert spec.one_call
    assert spec.model == "m"
    assert spec.template.variables == {"mood": "gay", "reasoning_effort": "low"}
    own = conversation(
        chat_template_kwargs={"reasoning_effort": "high"}, reasoning={"effort": "low"}
    )
    assert own.template.variables == {"reasoning_effort": "high"}


def test_no_effort_is_no_thoughts() -> None:
    off = {"enable_thinking": False, "thinking": False, "reasoning_effort": "none"}
    assert conversation(reasoning={"effort": "none"}).template.variables == off
    own = conversation(chat_template_kwargs={"thinking": True}, reasoning={"effort": "none"})
    assert own.template.variables == off | {"thinking": True}


async def test_what_is_generated() -> None:
    fields = {"temperature": 0.5, "top_p": 0.25, "top_k": 3, "seed": 5, "min_p": 0.125}
    fields["repetition_penalty"] = 1.5
    spec = await generation(**fields, stream=True, max_output_tokens=7, priority=0)
    assert {name: getattr(spec.params, name) for name in fields} == fields
    assert spec.form.stream
    assert (spec.max_tokens, spec.fits_context, spec.reply_id) == (7, True, "resp_x")


@pytest.mark.parametrize(
    ("fields", "num_top"),
    [
        ({}, None),
        ({"top_logprobs": 0}, None),
        ({"top_logprobs": 3}, 3),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["reasoning.encrypted_content"]}, None),
    ],
)
async def test_logprobs(fields: dict[str, Any], num_top: int | None) -> None:
    spec = await generation(**fields)
    assert (spec.params.logprobs, spec.form.num_top) == (num_top, num_top)


def test_formats() -> None:
    assert conversation(text={"format": {"type": "text"}}).grammar is None
    made = conversation(text={"format": {"type": "json_object"}}).grammar
    assert made is not None
    assert (made.kind, made.value, made.param) == ("json", {"type": "object"}, "text.format")
    assert made.allows_calls
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "array"}}
    made = conversation(text={"format": schema}).grammar
    assert made is not None
    assert (made.kind, made.value) == ("json", {"type": "array"})
    assert made.param == "text.format.schema"
    assert made.allows_calls


@pytest.mark.parametrize(
    ("field", "reported"),
    [
        ("max_tokens", "max_output_tokens"),
        ("named_tool", "tool_choice.name"),
        ("response_format", "text.format"),
        ("messages", "input"),
        ("prompts", "input"),
        ("logprobs", "top_logprobs"),
        ("tools", "tools"),
    ],
)
def test_errors_are_told_in_its_words(field: str, reported: str) -> None:
    error = conversation().names.refuse(field, "is bad")
    assert (error.param, error.message) == (reported, f"{reported} is bad")
