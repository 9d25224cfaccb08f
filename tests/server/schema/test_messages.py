"""Conversations as clients write them: what bad ones cost."""

from __future__ import annotations

from typing import Any

import pytest

from server.endpoints.chat.schema import ChatRequest
from server.endpoints.responses.schema import ResponsesRequest
from server.errors import ApiError
from server.schema.base import BodyModel, validate
from server.schema.messages import ChatMessage
from tests.server.slowness import fastest, slowness

MANY = 200_000
TEXT = {"type": "text", "text": "x"}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x", **fields}]}


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        (ChatRequest, chat(content=[1] * MANY), "content[0] must be an object"),
        (ChatRequest, chat(content=[{}] * 8192), "content[0].type is required"),
        (ChatRequest, chat(content=[TEXT] * MANY), "content is too long: at most 8192"),
        (ChatRequest, chat(tool_calls=[1] * MANY), "tool_calls[0] must be an object"),
        (ChatRequest, {**chat(), "documents": [1] * MANY}, "documents[0] must be an object"),
        (
            ResponsesRequest,
            {"input": [{"type": "reasoning", "summary": [1] * MANY}]},
            "summary[0] must be an object",
        ),
        (
            ResponsesRequest,
            {"input": "x", "metadata": {str(i): 1 for i in range(MANY)}},
            "metadata is too long: at most 64",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_are_not_made_that_are_not_told(
    kind: type[BodyModel], body: dict[str, Any], words: str
) -> None:
    """Of 200,000 they would hold up the event loop for a second; these take 30 ms at most."""

    def check() -> None:
        with pytest.raises(ApiError) as caught:
            validate(kind, body)
        assert words in caught.value.message
        assert len(caught.value.message) < 300

    assert fastest(check, 3) < 0.1 * slowness()


@pytest.mark.parametrize(("kind", "name"), [("text", "text"), ("refusal", "refusal")])
def test_a_part_without_its_text(kind: str, name: str) -> None:
    with pytest.raises(ApiError, match=rf"has no {name} in its part \[1\], of type {kind}"):
        validate(ChatRequest, chat(content=[TEXT, {"type": kind}]))


def test_a_part_of_thoughts_without_them() -> None:
    with pytest.raises(ApiError, match="has no thinking in its part"):
        validate(ChatRequest, chat(content=[{"type": "thinking"}]))


def test_what_another_server_added_to_a_message_is_accepted() -> None:
    """As agents replay it: OpenRouter, LiteLLM, DeepSeek, Google's and OpenAI's own parsed ones."""
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}},
        "extra_content": {"google": {"thought_signature": "x"}},
    }
    message = ChatMessage.model_validate(
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
            "tool_calls": [call],
            "reasoning_details": [{"type": "reasoning.text"}],
            "thinking_blocks": [],
            "prefix": True,
            "parsed": None,
            "images": [],
            "id": "m",
            "metadata": {},
            "citations": [],
        }
    )
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.name == "f"
    assert set(vars(message)) == set(ChatMessage.model_fields)
