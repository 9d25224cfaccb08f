"""What `POST /v1/responses` refuses, and what it accepts without effect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes import FakeEngine, says
from tests.server.conftest import in_process
from tests.server.endpoints.chat.chats import prompt_of
from tests.server.endpoints.chat.tool_replies import TEMPLATE
from tests.server.endpoints.responses.sent import LOOK, TOOLS, respond

REFUSED = {"type": "object", "properties": {"max_tokens": {"not": {"pattern": "x"}}}}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "param", "words"),
        [
            ({"previous_response_id": "resp_1"}, "previous_response_id", "no stored response"),
            ({"conversation": "conv_1"}, "conversation", "not available"),
            ({"background": True, "store": False}, "background", "`store` is true"),
            ({"background": True, "stream": True}, "stream", "must be false"),
            ({"truncation": "middle"}, "truncation", "'auto' or 'disabled'"),
            ({"include": ["everything"]}, "include[0]", "must be"),
            ({"prompt": {"id": "p"}}, "prompt", "not available"),
            ({"tools": [{"type": "file_search"}]}, "tools[0]", '"file_search"'),
            (
                {"tools": [{"type": "custom", "name": "f", "format": {"type": "grammar"}}]},
                "tools[0].format",
                "needs syntax",
            ),
            ({"tools": [LOOK, {"type": "custom", "name": "look"}]}, "tools", "named look again"),
            ({"tools": [LOOK, LOOK]}, "tools", "named look again"),
            ({"tools": [LOOK | {"name": "a b"}]}, "tools[0].name", "letters"),
            ({**TOOLS, "tool_choice": {"type": "mcp"}}, "tool_choice", '"mcp"'),
            (
                {
                    **TOOLS,
                    "tool_choice": {
                        "type": "allowed_tools",
                        "mode": "auto",
                        "tools": [{"type": "function", "name": "no"}],
                    },
                },
                "tool_choice.tools",
                "tool_choice.tools must be the name of one of the tools (look, stop)",
            ),
            (
                {**TOOLS, "tool_choice": {"type": "function", "name": "no"}},
                "tool_choice.name",
                "tool_choice.name must be the name of one of the tools",
            ),
            ({"input": [{"type": "computer_call_output"}]}, "input[0]", '"computer_call_output"'),
            ({"input": [{"type": "function_call"}]}, "input[0]", "needs arguments, call_id, name"),
            (
                {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
                "input[0].content[0]",
                '"input_image"',
            ),
            (
                {"input": [{"type": "function_call_output", "call_id": "c2", "output": "x"}]},
                "input[0].call_id",
                '(there is none), got "c2"',
            ),
            ({"input": [CALL | {"arguments": "{]"}]}, "input[0].arguments", "must be JSON"),
            ({"input": [CALL | {"arguments": "3"}]}, "input[0].arguments", "an object, got 3"),
            ({"input": []}, "input", "too short"),
            ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
            ({"instructions": "x" * 999}, "input", "input must leave room"),
            ({"text": {"format": {"type": "xml"}}}, "text.format", '"xml"'),
            (
                {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": 3}}}},
                "text.format.schema.type",
                "text.format.schema.type",
            ),
            (
                {"tools": [LOOK | {"strict": True, "parameters": REFUSED}]},
                "tools[0].parameters.properties.max_tokens.not",
                "tools[0].parameters.properties.max_tokens.not cannot be enforced",
            ),
            (
                {"text": {"format": {"type": "json_schema", "name": "n", "schema": REFUSED}}},
                "text.format.schema.properties.max_tokens.not",
                "text.format.schema.properties.max_tokens.not cannot be enforced",
            ),
            ({"top_logprobs": 99}, "top_logprobs", "top_logprobs"),
            ({"max_tokens": 9}, "max_tokens", "unknown field"),
        ],
        ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else None,
    )
    async def test_bad_fields(self, fields: dict[str, Any], param: str, words: str) -> None:
        async with in_process(chat_template=TEMPLATE) as site:
            error = await respond(site, 400, **fields)
            assert words in error["message"]
            assert error["param"] == param
            assert not site.engine.requests

    async def test_limits_have_the_names_of_this_route(self) -> None:
        async with in_process(chat_template=TEMPLATE, max_reply_values=100) as site:
            error = await respond(site, 400, max_output_tokens=50, top_logprobs=9)
            assert error["param"] == "max_output_tokens"
            assert "x max_output_tokens 50 x (1 + 9 logprobs" in error["message"]
        async with in_process() as site:
            error = await respond(site, 400)
            assert error["param"] == "input"
            assert "the model has no chat template" in error["message"]

    async def test_what_is_accepted(self) -> None:
        fields: dict[str, Any] = {
            "store": False,
            "previous_response_id": None,
            "user": "u",
            "safety_identifier": "s",
            "prompt_cache_key": "k",
            "service_tier": "auto",
            "truncation": "disabled",
            "max_tool_calls": 3,
            "include": ["file_search_call.results"],
            "tools": [{"type": "web_search", "external_web_access": False}],
            "text": {"verbosity": "low"},
            "stream_options": {"include_obfuscation": False},
        }
        async with in_process(FakeEngine(says("Hi")), chat_template=TEMPLATE) as site:
            assert (await respond(site, **fields))["output"][0]["content"][0]["text"] == "Hi"
            assert prompt_of(site) == "[user]hello[assistant]"
            reply = await site.client.post("/v1/responses", json={"input": "hello", **fields})
            assert reply.headers["x-ignored-fields"] == "tools[0]"
