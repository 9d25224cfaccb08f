"""Chats with tools and reasoning over the fake engine: replies, streams, logprobs, refusals."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages.step_output import Finish
from tests.fakes import EOS, FakeEngine, says
from tests.server.conftest import in_process, nested
from tests.server.endpoints.chat.chats import HELLO, chat, prompt_of, stream
from tests.server.endpoints.chat.tool_replies import (
    PARTS,
    PLAIN,
    REPLY,
    SLOW_FIXTURES,
    TEMPLATE,
    TOOLS,
    call,
    choice,
    joined,
    tool,
)


class TestReply:
    async def test_the_shape(self) -> None:
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE) as site:
            reply = await chat(site, **TOOLS)
            [choice] = reply["choices"]
            message = choice["message"]
            assert prompt_of(site) == "[tool]look[tool]stop[user]hello[assistant]"
            assert message["content"] == "I look."
            assert message["reasoning_content"] == "They want it."
            assert choice["finish_reason"] == "tool_calls"
            first, second = message["tool_calls"]
            assert first["type"] == "function"
            assert first["function"]["name"] == "look"
            assert json.loads(first["function"]["arguments"]) == {"at": "grüße </tool_call>"}
            assert second["function"] == {"name": "stop", "arguments": "{}"}
            assert first["id"] != second["id"]
            # The markers begin and end on tokens of one byte, so only the words count.
            assert reply["usage"]["completion_tokens_details"] == {
                "reasoning_tokens": len("They want it.")
            }

    async def test_content_is_null_beside_calls_alone(self) -> None:
        async with in_process(FakeEngine(says(call())), chat_template=TEMPLATE) as site:
            [choice] = (await chat(site, **TOOLS))["choices"]
            assert choice["message"]["content"] is None

    async def test_a_call_that_is_cut_off(self) -> None:
        script = says('<tool_call>{"name": "look", "arguments": {"at": "i', Finish.LENGTH)
        async with in_process(FakeEngine(script), chat_template=TEMPLATE) as site:
            [choice] = (await chat(site, **TOOLS))["choices"]
            assert choice["finish_reason"] == "length"
            [made] = choice["message"]["tool_calls"]
            assert made["function"]["arguments"] == '{"at": "i'

    async def test_at_most_one_call(self) -> None:
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE) as site:
            fields = {**TOOLS, "parallel_tool_calls": False}
            [choice] = (await chat(site, **fields))["choices"]
            assert len(choice["message"]["tool_calls"]) == 1
            assert len(joined(await stream(site, **fields))["tool_calls"]) == 1

    async def test_without_tools_calls_are_not_looked_for(self) -> None:
        async with in_process(FakeEngine(says(call())), chat_template=TEMPLATE) as site:
            [choice] = (await chat(site))["choices"]
            assert choice["message"]["content"] == call()
            assert choice["finish_reason"] == "stop"
            assert prompt_of(site) == "[user]hello[assistant]"

    @pytest.mark.parametrize("excludes", [False, True])
    async def test_tools_that_may_not_be_called_are_shown_all_the_same(
        self, excludes: bool
    ) -> None:
        """So that the prompt begins as it did before; the flag hides them."""
        settings: dict[str, Any] = {
            "chat_template": TEMPLATE,
            "exclude_tools_when_none": excludes,
        }
        async with in_process(FakeEngine(says(REPLY)), **settings) as site:
            fields = {**TOOLS, "tool_choice": "none"}
            [choice] = (await chat(site, **fields))["choices"]
            assert prompt_of(site).startswith("[tool]") != excludes
            assert choice["finish_reason"] == "stop"
            assert "tool_calls" not in choice["message"]
            assert ("<tool_call>" in choice["message"]["content"]) == excludes
            message = joined(await stream(site, **fields))
            assert message["content"] == choice["message"]["content"]
            assert not message["tool_calls"]

    @pytest.mark.parametrize("name", ["tool_choice", "function_call"])
    async def test_tools_that_the_template_cannot_show_may_be_given_with_none(
        self, name: str
    ) -> None:
        async with in_process(FakeEngine(says("Hi")), chat_template=PLAIN) as site:
            fields: dict[str, Any] = {**TOOLS, name: "none"}
            [choice] = (await chat(site, **fields))["choices"]
            assert choice["message"]["content"] == "Hi"

    async def test_tokenize_shows_tools(self) -> None:
        async with in_process(FakeEngine(says("Hi")), chat_template=TEMPLATE) as site:
            messages = [{"role": "user", "content": "hello"}]
            await chat(site, **TOOLS)
            reply = await site.client.post("/tokenize", json={"messages": messages, **TOOLS})
            assert bytes(reply.json()["tokens"]).decode() == prompt_of(site)
            reply = await site.client.post("/tokenize", json={"prompt": "x", **TOOLS})
            assert reply.json()["error"]["param"] == "tools"

    async def test_thoughts_that_the_prompt_opens(self) -> None:
        script = says("They want it.</think>\nHi")
        async with in_process(FakeEngine(script), chat_template=TEMPLATE + "<think>\n") as site:
            [choice] = (await chat(site))["choices"]
            assert choice["message"]["reasoning_content"] == "They want it."
            assert choice["message"]["content"] == "Hi"


class TestFlags:
    async def test_reasoning_by_another_name(self) -> None:
        settings: dict[str, Any] = {"chat_template": TEMPLATE, "reasoning_field": "reasoning"}
        async with in_process(FakeEngine(says(REPLY)), **settings) as site:
            [choice] = (await chat(site))["choices"]
            assert choice["message"]["reasoning"] == "They want it."
            assert "reasoning_content" not in choice["message"]

    async def test_parsers_by_name(self) -> None:
        settings: dict[str, Any] = {"tool_call_parser": "pythonic", "reasoning_parser": "none"}
        script = says('[look(at="it")]')
        async with in_process(FakeEngine(script), chat_template=TEMPLATE, **settings) as site:
            [choice] = (await chat(site, **TOOLS))["choices"]
            [made] = choice["message"]["tool_calls"]
            assert made["function"] == {"name": "look", "arguments": '{"at": "it"}'}
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE, **settings) as site:
            [choice] = (await chat(site))["choices"]
            assert choice["message"]["content"] == REPLY

    async def test_no_parser(self) -> None:
        settings: dict[str, Any] = {"tool_call_parser": "none", "reasoning_parser": "none"}
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE, **settings) as site:
            [choice] = (await chat(site, **TOOLS))["choices"]
            assert choice["message"]["content"] == REPLY
            assert prompt_of(site).startswith("[tool]look")

    async def test_reasoning_is_left_out(self) -> None:
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE) as site:
            fields = {**TOOLS, "include_reasoning": False, "logprobs": True}
            reply = await chat(site, **fields)
            [choice] = reply["choices"]
            assert "reasoning_content" not in choice["message"]
            assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 13
            parts = [token["part"] for token in choice["logprobs"]["tokens"]]
            assert parts.count("reasoning") == 13
            assert joined(await stream(site, **fields))["reasoning_content"] == ""

    @pytest.mark.parametrize("shown", [{}, {"logprobs": True}])
    async def test_reasoning_stays_in_the_content(self, shown: dict[str, Any]) -> None:
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE) as site:
            fields = {**TOOLS, **shown, "separate_reasoning": False}
            message = (await chat(site, **fields))["choices"][0]["message"]
            assert message["content"] == "<think>\nThey want it.\n</think>\n\nI look."
            assert "reasoning_content" not in message
            assert len(message["tool_calls"]) == 2
            assert joined(await stream(site, **fields))["content"] == message["content"]

    @pytest.mark.parametrize("shown", [{}, {"logprobs": True}])
    @pytest.mark.parametrize("reply", [REPLY, "<think>\nThey want it."])
    async def test_a_stream_has_the_reasoning_whole(
        self, reply: str, shown: dict[str, Any]
    ) -> None:
        async with in_process(FakeEngine(says(reply)), chat_template=TEMPLATE) as site:
            chunks = await stream(site, **TOOLS, **shown, stream_reasoning=False)
            plain = await stream(site, **TOOLS, **shown)
            deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
            thoughts = [d["reasoning_content"] for d in deltas if "reasoning_content" in d]
            assert thoughts == ["They want it."]
            said = joined(chunks), joined(plain)
            for one in said:
                for call in one["tool_calls"]:
                    call["id"] = "any"
            assert said[0] == said[1]


class TestLogprobs:
    async def test_every_token_has_its_part(self) -> None:
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE) as site:
            [choice] = (await chat(site, logprobs=True, top_logprobs=1, **TOOLS))["choices"]
            logprobs, raw = choice["logprobs"], REPLY.encode()
            tokens = logprobs["tokens"]
            assert [token["token_id"] for token in tokens] == [*raw, EOS]

            def text_of(part: str) -> str:
                found = bytes(t["token_id"] for t in tokens[:-1] if t["part"] == part)
                return found.decode()

            assert text_of("reasoning") == "They want it."
            assert text_of("content") == "I look."
            assert text_of("tool") == 'look{"at": "grüße </tool_call>"}stop{}'
            assert tokens[-1]["part"] == "markup"
            content = bytes(b for entry in logprobs["content"] for b in entry["bytes"])
            assert content == b"I look."

    async def test_packed_logprobs_have_parts(self) -> None:
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE) as site:
            fields: dict[str, Any] = {"logprobs": True, **TOOLS}
            [plain] = (await chat(site, **fields))["choices"]
            [choice] = (await chat(site, logprobs_format="packed", **fields))["choices"]
            packed = choice["logprobs"]["parts"]
            codes = np.frombuffer(base64.b64decode(packed["data"]), dtype=packed["dtype"])
            names = ["reasoning", "content", "tool", "markup"]
            parts = [token["part"] for token in plain["logprobs"]["tokens"]]
            assert [names[code] for code in codes] == parts

    async def test_nothing_generated(self) -> None:
        fields: dict[str, Any] = {"max_tokens": 0, "logprobs": True, "logprob_token_ids": [1]}
        async with in_process(FakeEngine(says(REPLY)), chat_template=TEMPLATE) as site:
            [choice] = (await chat(site, **fields, **TOOLS))["choices"]
            assert choice["message"]["content"] == ""
            assert len(choice["logprob_token_ids"]["logprobs"]) == 1


@SLOW_FIXTURES
@given(
    parts=st.lists(PARTS, max_size=6),
    stop=st.lists(st.sampled_from(["o", "</th", "> ", "\n<t", "ü"]), max_size=1),
    interval=st.integers(1, 40),
    logprobs=st.booleans(),
)
async def test_a_joined_stream_equals_the_plain_reply(
    parts: list[str], stop: list[str], interval: int, logprobs: bool
) -> None:
    """Whatever number of tokens a chunk has, and wherever characters and markers are cut."""
    fields: dict[str, Any] = {
        "logprobs": logprobs,
        "return_token_ids": logprobs,
        "stop": stop or None,
        "stream_interval": interval,
        "stream_options": {"include_usage": True},
        **TOOLS,
    }
    engine = FakeEngine(says("".join(parts), Finish.LENGTH), max_model_len=2048)
    async with in_process(engine, chat_template=TEMPLATE) as site:
        plain = await chat(site, **{k: v for k, v in fields.items() if k[:6] != "stream"})
        chunks = await stream(site, **fields)
    [expected] = plain["choices"]
    message, mine = joined(chunks), [c["choices"][0] for c in chunks if c["choices"]]
    assert message["content"] == (expected["message"]["content"] or "")
    assert message["reasoning_content"] == expected["message"].get("reasoning_content", "")
    assert [made["function"] for made in message["tool_calls"]] == [
        made["function"] for made in expected["message"].get("tool_calls", [])
    ]
    assert mine[-1]["finish_reason"] == expected["finish_reason"]
    assert mine[-1]["stop_reason"] == expected["stop_reason"]
    assert chunks[-1]["usage"] == plain["usage"]
    if logprobs:
        for key in ("content", "tokens"):
            entries = [entry for c in mine if c["logprobs"] for entry in c["logprobs"][key]]
            assert entries == expected["logprobs"][key]
        assert [i for c in mine for i in c.get("token_ids", [])] == expected["token_ids"]


def messages(*ids: str | None, answer: str | None = "a") -> dict[str, Any]:
    """A conversation with calls of these ids and one answer."""
    calls = [{"id": i, "function": {"name": "look", "arguments": "{}"}} for i in ids]
    asked: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": calls}
    return {"messages": [*HELLO, asked, {"role": "tool", "content": "x", "tool_call_id": answer}]}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """A choice of these tools."""
    own = {"mode": mode, "tools": [choice(name) for name in names]}
    return {"type": "allowed_tools", "allowed_tools": own}


async def test_allowed_tools() -> None:
    """All are shown, so that the prompt stays the same; those alone may be called."""
    async with in_process(FakeEngine(says(call("stop"))), chat_template=TEMPLATE) as site:
        for mode in ("auto", "required"):
            reply = await chat(site, **TOOLS, tool_choice=allowed(mode, "stop"))
            assert prompt_of(site).startswith("[tool]look[tool]stop")
            [made] = reply["choices"][0]["message"]["tool_calls"]
            assert made["function"]["name"] == "stop"
            grammar = site.engine.requests[-1].grammar
            assert grammar is not None
            assert "stop" in grammar.source
            assert "look" not in grammar.source


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **fields}}]}


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "param", "words"),
        [
            ({"tools": [{"type": "custom", "function": {"name": "f"}}]}, "tools[0].type", "custom"),
            ({"tools": [{"type": "function"}]}, "tools[0].function", "required"),
            ({"tools": [tool("a b")]}, "tools[0].function.name", "letters"),
            ({"tools": [tool("")]}, "tools[0].function.name", "letters"),
            ({"tools": [tool("x" * 129)]}, "tools[0].function.name", "1 to 128"),
            ({"tools": [tool("f"), tool("f")]}, "tools", "named f again"),
            ({"tools": [tool(f"f{i}") for i in range(500)]}, "tools", "at most 256"),
            (
                {"tools": [tool(at={"description": "x" * (1 << 20)})]},
                "tools[0].function.parameters",
                "at most 262144 bytes",
            ),
            (function(parameters={"type": "array"}), "tools[0].function.parameters", "an object"),
            (
                function(parameters={"type": "object", "properties": []}),
                "tools[0].function.parameters",
                "/properties must be an object",
            ),
            (
                function(parameters={"properties": {"a": {"type": "text"}}}),
                "tools[0].function.parameters",
                '/properties/a/type is "text"',
            ),
            (
                function(parameters={"properties": {"a": {"items": 3}}}),
                "tools[0].function.parameters",
                "/properties/a/items is 3",
            ),
            (
                function(parameters={"required": "a"}),
                "tools[0].function.parameters",
                "/required must be a list",
            ),
            (
                function(parameters={"default": nested(200)}),
                "tools[0].function.parameters",
                "nested at most 200 levels",
            ),
            (
                {**TOOLS, "tool_choice": {"type": "function", "function": {"name": 3}}},
                "tool_choice.function.name",
                "must be a string, got 3",
            ),
            ({**TOOLS, "tool_choice": "any"}, "tool_choice", '"any"'),
            (
                {**TOOLS, "tool_choice": {"type": "allowed_tools"}},
                "tool_choice.allowed_tools",
                "is required",
            ),
            (
                {**TOOLS, "tool_choice": allowed("auto", "jump")},
                "tool_choice.allowed_tools.tools",
                "one of the tools (look, stop), got 'jump'",
            ),
            ({**TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice", '"custom"'),
            ({**TOOLS, "tool_choice": {"type": "function"}}, "tool_choice", "function is null"),
            (
                {**TOOLS, "tool_choice": choice("jump")},
                "tool_choice.function.name",
                "one of the tools (look, stop), got 'jump'",
            ),
            ({"tool_choice": "required"}, "tool_choice", "needs tools"),
            (
                {"messages": [*HELLO, {"role": "tool", "content": "x", "tool_call_id": "a"}]},
                "messages[1].role",
                "no assistant's message",
            ),
            (messages("b", "c"), "messages[2].tool_call_id", '(b, c), got "a"'),
            (messages("b", answer=None), "messages[2].tool_call_id", "got null"),
        ],
        ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else None,
    )
    async def test_bad_fields(self, fields: dict[str, Any], param: str, words: str) -> None:
        async with in_process(chat_template=TEMPLATE) as site:
            error = await chat(site, 400, **fields)
            assert error["param"] == param
            assert words in error["message"]
            assert not site.engine.requests

    @pytest.mark.parametrize("fields", [messages("a"), messages(None, answer=None)])
    async def test_answers_of_calls(self, fields: dict[str, Any]) -> None:
        async with in_process(chat_template=TEMPLATE) as site:
            reply = await chat(site, max_tokens=1, **fields)
            assert reply["usage"]["completion_tokens"] == 1

    async def test_a_template_without_tools(self) -> None:
        async with in_process(chat_template=PLAIN) as site:
            error = await chat(site, 400, **TOOLS)
            assert error["param"] == "tools"
            assert "not known to the model's chat template" in error["message"]

    async def test_a_format_that_is_not_known(self) -> None:
        async with in_process(chat_template="{{ tools }}") as site:
            error = await chat(site, 400, **TOOLS)
            assert "--tool-call-parser" in error["message"]


async def test_tools_reach_the_template_as_they_are() -> None:
    source = "{{ tools | tojson }}{# <tool_call> arguments #}"
    async with in_process(FakeEngine(max_model_len=1024), chat_template=source) as site:
        plain = {"type": "function", "function": {"name": "f", "description": "Does."}}
        await chat(site, max_tokens=1, tools=[tool(at={"type": "string"}), plain])
        first, second = json.loads(prompt_of(site))
        assert first == tool(at={"type": "string"})
        assert second["function"]["parameters"] == {"type": "object", "properties": {}}
