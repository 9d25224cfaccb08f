"""The real `anthropic` package: sync, async, its stream helper, a tool loop, and its errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam

from engine.messages.step_output import Finish
from tests.fakes import EOS, FakeEngine, says
from tests.server.conftest import MODEL, Site, on_a_port
from tests.server.endpoints.agents import KEY, TEMPLATE, looks_then_answers
from tests.server.endpoints.chat.chats import prompt_of

TOOL: ToolParam = {
    "name": "look",
    "description": "Looks.",
    "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}},
}
HELLO: list[MessageParam] = [{"role": "user", "content": "Where is it?"}]


@pytest.fixture
async def live() -> AsyncIterator[Site]:
    engine = FakeEngine(looks_then_answers, max_model_len=2048)
    async with on_a_port(engine, api_keys=(KEY,), chat_template=TEMPLATE) as site:
        yield site


def client_of(site: Site, key: str = KEY) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=site.url, api_key=key, max_retries=0)


def results(content: list[Any]) -> list[MessageParam]:
    """The conversation with the tools' results, as the package's documents have it."""
    uses = [block for block in content if block.type == "tool_use"]
    assert [use.input for use in uses] == [{"at": "it"}]
    return [
        *HELLO,
        {"role": "assistant", "content": content},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": use.id, "content": "there"} for use in uses
            ],
        },
    ]


THINKS: Any = {"thinking": {"type": "adaptive"}}


async def test_a_tool_loop(live: Site) -> None:
    async with client_of(live) as client:
        asked: dict[str, Any] = {"model": MODEL, "max_tokens": 512, "tools": [TOOL], **THINKS}
        message = await client.messages.create(messages=HELLO, **asked)
        assert message.stop_reason == "tool_use"
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
        message = await client.messages.create(messages=results(message.content), **asked)
    assert message.stop_reason == "end_turn"
    assert message.content[0].type == "text"
    assert message.content[0].text == "It is there."
    assert prompt_of(live) == (
        "[tool]look[user]Where is it?[assistant]<think>I must look.</think>Wait.<tool_call>"
        + json.dumps({"name": "look", "arguments": {"at": "it"}})
        + "</tool_call>[tool]there[assistant]"
    )


async def test_a_streamed_tool_loop(live: Site) -> None:
    """By the package's own accumulator."""
    messages, kinds = HELLO, []
    async with client_of(live) as client:
        for _ in range(2):
            async with client.messages.stream(
                model=MODEL, max_tokens=512, tools=[TOOL], messages=messages, **THINKS
            ) as stream:
                kinds += [event.type async for event in stream]
                message = await stream.get_final_message()
            if message.stop_reason == "tool_use":
                messages = results(message.content)
    assert {"thinking", "signature", "text", "input_json"} <= set(kinds)
    assert message.content[0].type == "text"
    assert message.content[0].text == "It is there."
    assert message.usage.output_tokens == len("It is there.") + 1


async def test_the_sync_client(live: Site) -> None:
    def use() -> tuple[str, int]:
        with anthropic.Anthropic(base_url=live.url, auth_token=KEY, max_retries=0) as client:
            counted = client.messages.count_tokens(model=MODEL, messages=HELLO)
            with client.messages.stream(
                model=MODEL, max_tokens=64, stop_sequences=["wait", "Wait"], messages=HELLO
            ) as stream:
                list(stream.text_stream)
                message = stream.get_final_message()
        return str(message.stop_sequence), counted.input_tokens

    expected = len("[user]Where is it?[assistant]")
    assert await asyncio.to_thread(use) == ("Wait", expected)


async def test_errors_are_its_exceptions(live: Site) -> None:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 9, "messages": HELLO}
    async with client_of(live) as client:
        with pytest.raises(anthropic.BadRequestError, match="unknown field 'wish'"):
            await client.messages.create(**asked, extra_body={"wish": 1})
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(**{**asked, "model": "other"})
    async with client_of(live, "wrong") as client:
        with pytest.raises(anthropic.AuthenticationError, match="X-Api-Key"):
            await client.messages.create(**asked)


async def test_an_error_inside_a_stream(live: Site) -> None:
    live.engine.script = says("It is", Finish.ERROR)
    async with client_of(live) as client:
        with pytest.raises(anthropic.APIStatusError, match="it broke"):
            async with client.messages.stream(model=MODEL, max_tokens=64, messages=HELLO) as stream:
                await stream.get_final_message()


async def test_an_unfinished_character_is_no_error(live: Site) -> None:
    live.engine.script = lambda request, choice, position: (0x41, 0xC3, EOS)[position]
    async with client_of(live) as client:
        message = await client.messages.create(model=MODEL, max_tokens=9, messages=HELLO)
    assert message.content[0].type == "text"
    assert message.content[0].text == "A\ufffd"


async def test_models_have_the_shape_of_the_package(live: Site) -> None:
    async with client_of(live) as client:
        page = await client.models.list()
        assert [(each.id, each.type) for each in page.data] == [(MODEL, "model")]
        assert (page.first_id, page.last_id, page.has_more) == (MODEL, MODEL, False)
        one = await client.models.retrieve(MODEL)
        assert one.display_name == MODEL
        # The package itself does not check what it reads.
        anthropic.types.ModelInfo.model_validate(one.model_dump())
        assert one.created_at.tzinfo is not None


async def test_any_name_of_a_model_may_be_allowed() -> None:
    async with (
        on_a_port(FakeEngine(says("Hi")), chat_template=TEMPLATE, any_model_name=True) as site,
        client_of(site) as client,
    ):
        message = await client.messages.create(model="claude-x", max_tokens=5, messages=HELLO)
        assert message.model == "claude-x"
