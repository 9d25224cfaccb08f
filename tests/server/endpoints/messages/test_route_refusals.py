"""What `POST /v1/messages` refuses, in Anthropic's shape, and what it accepts without effect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes import FakeEngine, says
from tests.server.conftest import in_process
from tests.server.endpoints.chat.tool_replies import TEMPLATE
from tests.server.endpoints.messages.sent import HELLO, LOOK, TOOLS, error_of, send

REFUSED = {"type": "object", "properties": {"a": {"not": {"pattern": "x"}}}}
USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}


def after_a_use(*blocks: dict[str, Any]) -> dict[str, Any]:
    used = {"role": "assistant", "content": [USE]}
    return {"messages": [*HELLO, used, {"role": "user", "content": list(blocks)}]}


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"max_tokens": None}, "max_tokens must be an integer"),
            ({"system": "x" * 999}, "messages must leave room"),
            ({"frequency_penalty": 1}, "unknown field 'frequency_penalty'"),
            ({"messages": []}, "messages is too short"),
            (
                {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
                'messages[0].content[0] has the type "image"',
            ),
            (
                {"messages": [{"role": "user", "content": [USE]}]},
                "messages[0].content[0].type must be one of text, tool_result",
            ),
            (
                after_a_use({"type": "tool_result", "tool_use_id": "t2"}),
                "messages[2].content[0].tool_use_id must be the id of a tool_use in the message "
                'before it (t1), got "t2"',
            ),
            (
                after_a_use(
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "image"}]}
                ),
                'messages[2].content[0].content[0] has the type "image"',
            ),
            (
                {"messages": [*HELLO, {"role": "assistant", "content": [USE]}]},
                "messages[1] must be followed by the results",
            ),
            ({"tools": [LOOK, LOOK]}, "named look again"),
            ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, '"bash_20250124"'),
            (
                {"tools": [{"name": "f", "input_schema": {"type": "array"}}]},
                "tools[0].input_schema must be the schema of an object",
            ),
            (
                {**TOOLS, "tool_choice": {"type": "tool", "name": "no"}},
                "tool_choice.name must be the name of one of the tools",
            ),
            ({**TOOLS, "tool_choice": {"type": "some"}}, 'tool_choice has the type "some"'),
            ({"thinking": {"type": "enabled"}}, "thinking of type enabled needs budget_tokens"),
            ({"mcp_servers": [{}]}, "mcp_servers is not available"),
            (
                {"output_config": {"format": {"type": "json_schema", "schema": {"type": 3}}}},
                "output_config.format.schema.type",
            ),
            (
                {"tools": [LOOK | {"strict": True, "input_schema": REFUSED}]},
                "tools[0].input_schema.properties.a.not cannot be enforced",
            ),
        ],
        ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else None,
    )
    async def test_bad_fields(self, fields: dict[str, Any], words: str) -> None:
        async with in_process(chat_template=TEMPLATE) as site:
            error = await send(site, 400, **fields)
            assert error["type"] == "invalid_request_error"
            assert words in error["message"]
            assert not site.engine.requests

    async def test_a_budget_of_a_model_that_does_not_think(self) -> None:
        async with in_process(chat_template="{{ messages[0].content }}") as site:
            error = await send(site, 400, thinking={"type": "enabled", "budget_tokens": 9})
            words = "thinking.budget_tokens needs a model whose thoughts are known"
            assert error["message"].startswith(words)

    async def test_a_thread_is_refused_by_the_code_at_which_clients_send_all(self) -> None:
        async with in_process(chat_template=TEMPLATE) as site:
            error = await send(site, 400, thread={"type": "create"})
            assert error["message"].startswith("thread must be null")
            assert error["details"] == {"error_code": "thread_unsupported_request"}

    async def test_what_is_accepted(self) -> None:
        cached: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
        fields: dict[str, Any] = {
            "metadata": {"user_id": "u"},
            "service_tier": "auto",
            "system": [{"type": "text", "text": "a", **cached}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "b", **cached}]}],
            "tools": [LOOK | cached],
        }
        async with in_process(FakeEngine(says("Hi")), chat_template=TEMPLATE) as site:
            assert (await send(site, **fields))["content"][0]["text"] == "Hi"

    async def test_errors_of_other_layers_have_the_same_shape(self) -> None:
        async with in_process(chat_template=TEMPLATE, api_keys=("secret",)) as site:
            assert (await send(site, 401))["type"] == "authentication_error"
            key = {"x-api-key": "secret"}
            reply = await site.client.post("/v1/messages", json={}, headers=key)
            assert error_of(reply)["type"] == "invalid_request_error"
            reply = await site.client.get("/v1/messages", headers=key)
            assert error_of(reply)["type"] == "invalid_request_error"
            assert reply.status_code == 405
            reply = await site.client.post("/v1/messages/batches", json={}, headers=key)
            assert error_of(reply)["type"] == "not_found_error"
