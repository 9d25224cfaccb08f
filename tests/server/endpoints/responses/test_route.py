"""`POST /v1/responses` over the fake engine, by the `openai` package's own types."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.messages.step_output import Finish
from tests.fakes import EOS, FakeEngine, says
from tests.server.conftest import MODEL, Site, in_process
from tests.server.endpoints.chat.chats import chat, prompt_of
from tests.server.endpoints.chat.tool_replies import PARTS, REPLY, SLOW_FIXTURES, TEMPLATE, call
from tests.server.endpoints.responses.sent import TOOLS, events_of, respond

LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"

OPENRESPONSES = frozenset(
    (
        *("id", "object", "created_at", "completed_at", "status", "incomplete_details"),
        *("model", "previous_response_id", "instructions", "output", "error", "tools"),
        *("tool_choice", "truncation", "parallel_tool_calls", "text", "top_p"),
        *("presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning"),
        *("user", "usage", "max_output_tokens", "max_tool_calls", "store", "background"),
        *("service_tier", "metadata", "safety_identifier", "prompt_cache_key"),
    )
)
"""The fields that the schema of OpenResponses requires (ResponseResource)."""


async def stream(site: Site, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, in order."""
    body = {"model": MODEL, "input": "hello", "stream": True, **body}
    events = events_of(await site.client.post("/v1/responses", json=body))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


TIMES = ("id", "created_at", "completed_at", "call_id")


def without_ids(value: Any) -> Any:
    """The same without what differs from one request to the next."""
    if isinstance(value, list):
        return [without_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: without_ids(item) for key, item in value.items() if key not in TIMES}


def joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output that the deltas of a stream make, checked against what ends each item."""
    output: list[dict[str, Any]] = []
    texts: list[str] = []
    entries: list[Any] = []
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(output)
            output.append(event["item"])
            texts, entries = [], []
        elif kind.endswith(".delta"):
            assert event["output_index"] == len(output) - 1
            assert event["item_id"] == output[-1]["id"]
            assert event["delta"], "no delta is empty"
            texts.append(event["delta"])
            entries += event.get("logprobs", [])
        elif kind == "response.output_item.done":
            done = event["item"]
            assert done["id"] == output[-1]["id"]
            assert said_by(done) == "".join(texts)
            if done["type"] == "message":
                assert done["content"][0]["logprobs"][: len(entries)] == entries
            output[-1] = done
    return output


def said_by(item: dict[str, Any]) -> str:
    if item["type"] == "function_call":
        arguments: str = item["arguments"]
        return arguments
    parts: list[dict[str, str]] = item.get("content") or item["summary"]
    [part] = parts
    return part["text"]


class TestReply:
    async def test_the_output(self) -> None:
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE) as site:
            reply = await respond(site, instructions="Be brief.", **TOOLS)
            assert prompt_of(site) == "[tool]look[tool]stop[system]Be brief.[user]hello[assistant]"
        thoughts, message, look, stop = reply["output"]
        assert thoughts["content"] == [{"type": "reasoning_text", "text": "They want it."}]
        assert thoughts["summary"] == []
        assert "encrypted_content" not in thoughts
        assert message["content"][0]["text"] == "I look."
        assert json.loads(look["arguments"]) == {"at": "grüße </tool_call>"}
        assert (stop["name"], stop["arguments"]) == ("stop", "{}")
        assert [item["status"] for item in reply["output"]] == ["completed"] * 4
        assert reply["id"].startswith("resp_")
        assert reply["status"] == "completed"
        assert reply["store"] is True
        assert reply["instructions"] == "Be brief."
        usage, prompt_len = reply["usage"], len(prompt_of(site))
        assert usage["input_tokens"] == prompt_len
        # The fake finds half of each prompt in its cache.
        assert usage["input_tokens_details"]["cached_tokens"] == prompt_len // 2
        assert usage["output_tokens_details"]["reasoning_tokens"] == len("They want it.")
        assert usage["total_tokens"] == prompt_len + usage["output_tokens"]

    async def test_what_was_asked_for_is_repeated(self) -> None:
        asked: dict[str, Any] = {
            "metadata": {"k": "v"},
            "temperature": 0.5,
            "top_p": 0.25,
            "max_output_tokens": 99,
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"format": {"type": "json_object"}},
        }
        async with in_process(FakeEngine(says("{}")), chat_template=TEMPLATE) as site:
            reply = await respond(site, **TOOLS, **asked)
            assert {name: reply[name] for name in asked} == asked
            assert [tool["name"] for tool in reply["tools"]] == ["look", "stop"]
            params = site.engine.requests[-1].params
            assert (params.temperature, params.top_p) == (0.5, 0.25)
            assert site.engine.requests[-1].max_tokens == 99
            assert site.engine.requests[-1].grammar is not None

    async def test_all_fields_that_openresponses_asks_for(self) -> None:
        async with in_process(FakeEngine(says("Hi")), chat_template=TEMPLATE) as site:
            reply = await respond(site, presence_penalty=0.5, frequency_penalty=0.25, user="u")
            params = site.engine.requests[-1].params
            assert (params.presence_penalty, params.frequency_penalty) == (0.5, 0.25)
        assert reply.keys() >= OPENRESPONSES
        assert (reply["presence_penalty"], reply["user"]) == (0.5, "u")
        assert reply["service_tier"] == "default"

    async def test_a_reply_that_is_cut_off(self) -> None:
        script = says("I look.", Finish.LENGTH)
        async with in_process(FakeEngine(script), chat_template=TEMPLATE) as site:
            reply = await respond(site)
        assert reply["status"] == "incomplete"
        assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
        assert reply["output"][0]["status"] == "incomplete"
        assert reply["completed_at"] is None

    async def test_thoughts_as_a_summary(self) -> None:
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE) as site:
            thoughts = (await respond(site, reasoning={"summary": "auto"}))["output"][0]
            assert thoughts["summary"] == [{"type": "summary_text", "text": "They want it."}]
            kinds = [e["type"] for e in await stream(site, reasoning={"summary": "auto"})]
        assert "response.reasoning_summary_part.added" in kinds
        assert kinds.count("response.reasoning_summary_text.delta") > 1
        assert "response.reasoning_text.delta" not in kinds

    async def test_logprobs(self) -> None:
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE) as site:
            message = (await respond(site, top_logprobs=2, **TOOLS))["output"][1]
            [part] = message["content"]
            assert "".join(entry["token"] for entry in part["logprobs"]) == "I look."
            assert {len(entry["top_logprobs"]) for entry in part["logprobs"]} == {2}
            message = (await respond(site, include=[LOGPROBS], **TOOLS))["output"][1]
            assert len(message["content"][0]["logprobs"]) == len("I look.")

    async def test_at_most_one_call(self) -> None:
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE) as site:
            reply = await respond(site, parallel_tool_calls=False, **TOOLS)
            assert [item["type"] for item in reply["output"]].count("function_call") == 1


class TestStream:
    async def test_the_order_of_events(self) -> None:
        script = says(f"<think>So.</think>Hi{call('stop')}")
        async with in_process(FakeEngine(script), chat_template=TEMPLATE) as site:
            events = await stream(site, include=[ENCRYPTED], **TOOLS)
        kinds = [event["type"].removeprefix("response.") for event in events]
        once = [kind for i, kind in enumerate(kinds) if kind != kinds[i - 1] or i == 0]
        assert once == [
            *("created", "in_progress"),
            *("output_item.added", "content_part.added", "reasoning_text.delta"),
            *("reasoning_text.done", "content_part.done", "output_item.done"),
            *("output_item.added", "content_part.added", "output_text.delta"),
            *("output_text.done", "content_part.done", "output_item.done"),
            *("output_item.added", "function_call_arguments.delta"),
            *("function_call_arguments.done", "output_item.done", "completed"),
        ]
        added = next(event["item"] for event in events if "item" in event)
        assert added["encrypted_content"] == ""
        assert events[0]["response"]["output"] == []
        assert events[0]["response"]["status"] == events[1]["response"]["status"] == "in_progress"

    async def test_a_stream_that_is_cut_off(self) -> None:
        script = says('<tool_call>{"name": "look", "arguments": {"at": "i', Finish.LENGTH)
        async with in_process(FakeEngine(script), chat_template=TEMPLATE) as site:
            events = await stream(site, **TOOLS)
        assert events[-1]["type"] == "response.incomplete"
        [item] = events[-1]["response"]["output"]
        assert (item["status"], item["arguments"]) == ("incomplete", '{"at": "i')

    async def test_a_stream_that_fails(self) -> None:
        script = says("I look.", Finish.ERROR)
        async with in_process(FakeEngine(script), chat_template=TEMPLATE) as site:
            events = await stream(site)
        assert events[-1]["type"] == "response.failed"
        response = events[-1]["response"]
        assert response["status"] == "failed"
        assert response["error"] == {"code": "server_error", "message": "it broke"}

    async def test_an_early_failure_is_an_http_error(self) -> None:
        script = says("", Finish.ERROR)
        async with in_process(FakeEngine(script), chat_template=TEMPLATE) as site:
            assert (await respond(site, 500, stream=True))["message"] == "it broke"


async def test_chats_by_any_name_ask_the_engine_for_the_same() -> None:
    """So equal seeds give equal tokens on all three endpoints."""
    async with in_process(FakeEngine(says("Hi")), chat_template=TEMPLATE) as site:
        sampling: dict[str, Any] = {"seed": 5, "temperature": 0.5, "top_p": 0.25, "top_k": 3}
        said: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hello"}],
            **sampling,
        }
        await chat(site, **said, max_tokens=9)
        await respond(site, **sampling, max_output_tokens=9)
        await site.client.post("/v1/messages", json=said | {"max_tokens": 9})
        first, *others = site.engine.requests
    assert len(others) == 2
    for other in others:
        assert other.prompt_token_ids.tolist() == first.prompt_token_ids.tolist()
        assert (other.params, other.max_tokens, other.n) == (first.params, 9, 1)


@SLOW_FIXTURES
@given(
    parts=st.lists(PARTS, max_size=6),
    end=st.sampled_from([Finish.LENGTH, EOS]),
    interval=st.integers(1, 40),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "top_logprobs": st.just(1),
            "include": st.just([ENCRYPTED]),
            "reasoning": st.just({"summary": "auto"}),
            "parallel_tool_calls": st.just(False),
        },
    ),
)
async def test_a_joined_stream_equals_the_plain_reply(
    parts: list[str], end: int | Finish, interval: int, fields: dict[str, Any]
) -> None:
    """Whatever number of tokens a step of the stream has."""
    engine = FakeEngine(says("".join(parts), end), max_model_len=2048)
    async with in_process(engine, chat_template=TEMPLATE, stream_interval=interval) as site:
        plain = await respond(site, **TOOLS, **fields)
        events = await stream(site, **TOOLS, **fields)
    last = events[-1]["response"]
    assert without_ids(last) == without_ids(plain)
    assert joined(events) == last["output"]
