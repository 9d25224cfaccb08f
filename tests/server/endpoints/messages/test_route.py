"""`POST /v1/messages` over the fake engine, by the `anthropic` package's own types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import MessageTokensCount, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pydantic_core import from_json

from engine.messages.step_output import Finish
from server.endpoints.messages.shape import SIGNATURE
from tests.fakes import EOS, FakeEngine, says
from tests.server.conftest import MODEL, Site, in_process
from tests.server.endpoints.chat.chats import prompt_of
from tests.server.endpoints.chat.tool_replies import PARTS, REPLY, SLOW_FIXTURES, TEMPLATE, call
from tests.server.endpoints.messages.sent import HELLO, TOOLS, error_of, send

EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


async def stream(site: Site, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, each valid by its own type and named by it; pings are none's."""
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 200, "stream": True, **body}
    reply = await site.client.post("/v1/messages", json=body)
    assert reply.status_code == 200, reply.text
    frames = reply.text.split("\n\n")
    assert frames.pop() == ""
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] not in ("ping", "error"):
            assert EVENTS.validate_python(event).type == event["type"]
        events.append(event)
    return events


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events of a stream make."""
    message: dict[str, Any] = events[0]["message"]
    is_open = False
    arguments = ""
    for event in events[1:]:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                is_open, arguments = True, ""
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(message["content"]) - 1
                arguments += _join_delta(message["content"][-1], event["delta"])
            case "content_block_stop":
                assert is_open
                is_open, block = False, message["content"][-1]
                if block["type"] == "tool_use":
                    block["input"] = from_json(arguments or "{}", allow_partial=True)
            case "message_delta":
                message |= event["delta"]
                message["usage"] = event["usage"]
    assert not is_open
    return message


def _join_delta(block: dict[str, Any], delta: dict[str, Any]) -> str:
    """Put a delta to its block; returns what it has of a tool's input."""
    kind = delta.pop("type").removesuffix("_delta")
    [(name, value)] = delta.items()
    assert value, "no delta is empty"
    if kind == "input_json":
        assert block["type"] == "tool_use"
        return str(value)
    block[name] += value
    return ""


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    blocks = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
    return {k: v for k, v in message.items() if k != "id"} | {"content": blocks}


ADAPTIVE = {"type": "adaptive"}


class TestReply:
    async def test_the_blocks(self) -> None:
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE) as site:
            message = await send(site, system="Be brief.", thinking=ADAPTIVE, **TOOLS)
            assert prompt_of(site) == "[tool]look[tool]stop[system]Be brief.[user]hello[assistant]"
        thinking, text, look, stop = message["content"]
        assert thinking == {
            "type": "thinking",
            "thinking": "They want it.",
            "signature": SIGNATURE,
        }
        assert text == {"type": "text", "text": "I look."}
        assert look["input"] == {"at": "grüße </tool_call>"}
        assert (stop["name"], stop["input"]) == ("stop", {})
        assert look["id"].startswith("toolu_")
        assert message["id"].startswith("msg_")
        assert message["stop_reason"] == "tool_use"
        usage, prompt_len = message["usage"], len(prompt_of(site))
        # The fake finds half of each prompt in its cache.
        assert usage["cache_read_input_tokens"] == prompt_len // 2
        assert usage["input_tokens"] == prompt_len - prompt_len // 2
        assert usage["output_tokens"] == len(REPLY.encode()) + 1

    @pytest.mark.parametrize(
        ("fields", "end", "reason", "sequence"),
        [
            ({}, EOS, "end_turn", None),
            ({"max_tokens": 3}, EOS, "max_tokens", None),
            ({"max_tokens": 9999}, ord("x"), "model_context_window_exceeded", None),
            ({}, Finish.CANCELED, "max_tokens", None),
            ({"stop_sequences": ["ok", "xx"]}, EOS, "stop_sequence", "ok"),
        ],
    )
    async def test_why_it_ended(
        self, fields: dict[str, Any], end: int | Finish, reason: str, sequence: str | None
    ) -> None:
        async with in_process(FakeEngine(says("I look.", end)), chat_template=TEMPLATE) as site:
            message = await send(site, **fields)
        assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)

    async def test_a_tool_s_use_that_is_cut_off(self) -> None:
        script = says('<tool_call>{"name": "look", "arguments": {"at": "i", "x": "y', Finish.LENGTH)
        async with in_process(FakeEngine(script), chat_template=TEMPLATE) as site:
            message = await send(site, **TOOLS)
        assert message["stop_reason"] == "max_tokens"
        assert message["content"][0]["input"] == {"at": "i"}

    async def test_sampling(self) -> None:
        fields: dict[str, Any] = {"temperature": 0.5, "top_p": 0.25, "top_k": 3, "seed": 5}
        async with in_process(FakeEngine(says("Hi")), chat_template=TEMPLATE) as site:
            await send(site, **fields)
            params = site.engine.requests[-1].params
            assert {name: getattr(params, name) for name in fields} == fields

    async def test_at_most_one_use(self) -> None:
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE) as site:
            blocks = (await send(site, tool_choice=choice, **TOOLS))["content"]
            assert [block["type"] for block in blocks].count("tool_use") == 1

    async def test_tools_that_may_not_be_used_are_shown_and_their_use_is_left_out(self) -> None:
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE) as site:
            message = await send(site, tool_choice={"type": "none"}, **TOOLS)
            assert "tool_use" not in [block["type"] for block in message["content"]]
            assert message["stop_reason"] == "end_turn"
            assert prompt_of(site).startswith("[tool]look")

    @pytest.mark.parametrize(
        "thinking", [None, {"type": "disabled"}, {"type": "adaptive", "display": "omitted"}]
    )
    async def test_thoughts_are_left_out(self, thinking: dict[str, Any] | None) -> None:
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE) as site:
            message = await send(site, thinking=thinking)
            assert message["content"][0]["type"] == "text"
            events = await stream(site, thinking=thinking)
            assert without_ids(joined(events)) == without_ids(message)

    async def test_the_template_is_told_whether_to_think(self) -> None:
        source = "{{ enable_thinking }}{{ thinking }}{{ reasoning_effort }}"
        async with in_process(FakeEngine(says("Hi")), chat_template=source) as site:
            await send(site, thinking={"type": "adaptive"}, output_config={"effort": "high"})
            assert prompt_of(site) == "TrueTruehigh"
            await send(site, thinking={"type": "disabled"})
            assert prompt_of(site) == "FalseFalse"

    async def test_json_of_a_schema(self) -> None:
        wanted = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
        async with in_process(FakeEngine(says("{}")), chat_template=TEMPLATE) as site:
            await send(site, output_config=wanted)
            assert site.engine.requests[-1].grammar is not None

    async def test_the_beginning_of_the_reply(self) -> None:
        messages = [*HELLO, {"role": "assistant", "content": "It was"}]
        template = TEMPLATE.replace(
            "[assistant]", "{% if add_generation_prompt %}[assistant]{% endif %}"
        )
        async with in_process(FakeEngine(says(" so")), chat_template=template) as site:
            message = await send(site, messages=messages)
            assert prompt_of(site) == "[user]hello[assistant]It was"
            assert message["content"] == [{"type": "text", "text": " so"}]

    async def test_nothing_generated(self) -> None:
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE) as site:
            message = await send(site, max_tokens=0, **TOOLS)
            assert (message["content"], message["usage"]["output_tokens"]) == ([], 0)


class TestStream:
    async def test_the_order_of_events(self) -> None:
        script = says(f"<think>So.</think>Hi{call('stop')}")
        async with in_process(FakeEngine(script), chat_template=TEMPLATE) as site:
            events = await stream(site, thinking=ADAPTIVE, **TOOLS)
        kinds = [event["type"].removeprefix("content_block_") for event in events]
        once = [kind for i, kind in enumerate(kinds) if kind != kinds[i - 1] or i == 0]
        assert once == [
            *("message_start", "ping"),
            *("start", "delta", "stop") * 3,
            *("message_delta", "message_stop"),
        ]
        assert events[0]["message"]["usage"]["output_tokens"] == 0

    async def test_a_stream_that_fails(self) -> None:
        script = says("I look.", Finish.ERROR)
        async with in_process(FakeEngine(script), chat_template=TEMPLATE) as site:
            events = await stream(site)
        error = {"type": "api_error", "message": "it broke"}
        assert events[-1]["type"] == "error"
        assert events[-1]["error"].items() >= error.items()


@SLOW_FIXTURES
@given(
    parts=st.lists(PARTS, max_size=6),
    end=st.sampled_from([Finish.LENGTH, EOS]),
    stop=st.lists(st.sampled_from(["o", "</th", "> ", "\n<t", "ü"]), max_size=1),
    interval=st.integers(1, 40),
)
async def test_a_joined_stream_equals_the_plain_reply(
    parts: list[str], end: int | Finish, stop: list[str], interval: int
) -> None:
    """Whatever number of tokens a step of the stream has."""
    engine = FakeEngine(says("".join(parts), end), max_model_len=2048)
    fields: dict[str, Any] = {"stop_sequences": stop, "max_tokens": 1024, **TOOLS}
    async with in_process(engine, chat_template=TEMPLATE, stream_interval=interval) as site:
        plain = await send(site, **fields)
        events = await stream(site, **fields)
    assert without_ids(joined(events)) == without_ids(plain)


class TestCountTokens:
    async def count(self, site: Site, **body: Any) -> int:
        body = {"model": MODEL, "messages": HELLO, **body}
        reply = await site.client.post("/v1/messages/count_tokens", json=body)
        assert reply.status_code == 200, reply.text
        return MessageTokensCount.model_validate(reply.json(), strict=True).input_tokens

    async def test_it_is_what_the_prompt_has(self) -> None:
        async with in_process(FakeEngine(says("Hi")), chat_template=TEMPLATE) as site:
            fields = {"system": "Be brief.", **TOOLS}
            usage = (await send(site, **fields))["usage"]
            total = usage["input_tokens"] + usage["cache_read_input_tokens"]
            assert await self.count(site, **fields) == total
            assert await self.count(site) == len("[user]hello[assistant]")
            assert len(site.engine.requests) == 1

    async def test_refusals(self) -> None:
        async with in_process(chat_template=TEMPLATE) as site:
            body = {"model": MODEL, "messages": HELLO, "max_tokens": 3}
            reply = await site.client.post("/v1/messages/count_tokens", json=body)
            assert "unknown field 'max_tokens'" in error_of(reply)["message"]
            reply = await site.client.post(
                "/v1/messages/count_tokens", json={"model": "other", "messages": HELLO}
            )
            assert error_of(reply)["type"] == "not_found_error"
