"""A priority comes to the engine, and is refused where the scheduling policy would ignore it."""

from __future__ import annotations

from typing import Any

import pytest

from server.config import ServerConfig
from server.errors import ApiError
from server.schema.priority import check_priority
from tests.server.conftest import MODEL, in_process
from tests.server.endpoints.chat.tool_replies import TEMPLATE


def test_a_priority_needs_its_policy() -> None:
    for priority in (None, 0):
        check_priority(priority, ServerConfig(model_names=("m",)))
    with pytest.raises(ApiError, match="got -1") as caught:
        check_priority(-1, ServerConfig(model_names=("m",)))
    assert (caught.value.status, caught.value.param) == (400, "priority")
    check_priority(-1, ServerConfig(model_names=("m",), priority_scheduling=True))


TURNS = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": MODEL, "prompt": "hello", "max_tokens": 2}),
        ("/v1/chat/completions", {"model": MODEL, "messages": TURNS, "max_tokens": 2}),
        ("/v1/messages", {"model": MODEL, "messages": TURNS, "max_tokens": 2}),
        ("/v1/responses", {"model": MODEL, "input": "hello", "max_output_tokens": 2}),
        ("/inference/v1/generate", {"token_ids": [5, 6], "sampling_params": {"max_tokens": 2}}),
        ("/generate", {"text": "hello", "sampling_params": {"max_new_tokens": 2}}),
    ],
)
async def test_every_body_s_priority_comes_to_the_engine(path: str, body: dict[str, Any]) -> None:
    async with in_process(chat_template=TEMPLATE, priority_scheduling=True) as site:
        reply = await site.client.post(path, json={"priority": -3} | body)
        assert reply.status_code == 200, reply.text
        assert [request.priority for request in site.engine.requests] == [-3]
