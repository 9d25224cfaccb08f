"""The real `openai` package's Responses: sync, async, its stream helper, and replays of agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.fakes import FakeEngine
from tests.server.conftest import MODEL, Site, on_a_port
from tests.server.endpoints.agents import KEY, TEMPLATE, looks_then_answers
from tests.server.endpoints.chat.chats import prompt_of

TOOL: dict[str, Any] = {
    "type": "function",
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    "strict": False,
}
ASKED: dict[str, Any] = {"model": MODEL, "tools": [TOOL], "store": False}
QUESTION: dict[str, Any] = {"role": "user", "content": "Where is it?"}
REPLAYED = (
    "[tool]look[user]Where is it?[assistant]<think>I must look.</think>Wait.<tool_call>"
    + json.dumps({"name": "look", "arguments": {"at": "it"}})
    + "</tool_call>[tool]there[assistant]"
)


@pytest.fixture
async def live() -> AsyncIterator[Site]:
    engine = FakeEngine(looks_then_answers, max_model_len=2048)
    async with on_a_port(engine, api_keys=(KEY,), chat_template=TEMPLATE) as site:
        yield site


def client_of(site: Site) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key=KEY, max_retries=0)


def result(call: Any) -> dict[str, Any]:
    assert json.loads(call.arguments) == {"at": "it"}
    return {"type": "function_call_output", "call_id": call.call_id, "output": "there"}


async def test_a_tool_loop_that_replays_the_output_as_it_is(live: Site) -> None:
    async with client_of(live) as client:
        first = await client.responses.create(input="Where is it?", **ASKED)
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
        replayed = [item.model_dump() for item in first.output]  # nulls and all
        turns: list[Any] = [QUESTION, *replayed, result(first.output[-1])]
        second = await client.responses.create(input=turns, **ASKED)
    assert second.output_text == "It is there."
    assert prompt_of(live) == REPLAYED


async def test_a_streamed_tool_loop(live: Site) -> None:
    """By the package's own accumulator."""
    async with client_of(live) as client:
        turns: list[Any] = [QUESTION]
        for _ in range(2):
            async with client.responses.stream(input=turns, **ASKED) as stream:
                async for _event in stream:
                    pass
                response = await stream.get_final_response()
            for item in response.output:
                turns.append(item.model_dump(exclude_none=True, exclude={"parsed_arguments"}))
                if item.type == "function_call":
                    turns.append(result(item))
                if item.type == "message":
                    turns[-1]["content"][0].pop("parsed", None)
    assert response.output_text == "It is there."
    assert prompt_of(live) == REPLAYED


async def test_thoughts_come_back_by_their_encrypted_content_alone(live: Site) -> None:
    """Coding agents drop the content of reasoning items when they send them back."""
    asked = {**ASKED, "include": ["reasoning.encrypted_content"]}
    async with client_of(live) as client:
        first = await client.responses.create(input="Where is it?", **asked)
        thoughts = first.output[0].model_dump(include={"type", "encrypted_content"})
        others = [item.model_dump() for item in first.output[1:]]
        turns: list[Any] = [QUESTION, thoughts | {"summary": []}, *others, result(first.output[-1])]
        await client.responses.create(input=turns, **asked)
    assert prompt_of(live) == REPLAYED


async def test_a_stream_of_plain_events(live: Site) -> None:
    async with client_of(live) as client:
        stream = await client.responses.create(input="Where is it?", stream=True, **ASKED)
        events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"


async def test_the_sync_client(live: Site) -> None:
    def use() -> str:
        with openai.OpenAI(base_url=f"{live.url}/v1", api_key=KEY, max_retries=0) as client:
            with pytest.raises(openai.BadRequestError, match="no stored response"):
                client.responses.create(model=MODEL, input="x", previous_response_id="resp_1")
            return client.responses.create(model=MODEL, input="Where is it?").output_text

    assert (await asyncio.to_thread(use)).startswith("Wait.")
