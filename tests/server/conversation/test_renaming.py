"""Errors of chats in the words of other requests."""

from __future__ import annotations

import pytest

from server.conversation.renaming import renamed
from server.errors import bad_request

RENAMING = (
    (r"max_tokens\b", "max_output_tokens"),
    (r"response_format\.json_schema\b", "text.format"),
)
PLACES = ("instructions", "input[3]")


@pytest.mark.parametrize(
    ("param", "message", "told_param", "told"),
    [
        ("max_tokens", "max_tokens must be 1", "max_output_tokens", "max_output_tokens must be 1"),
        (
            "messages[1].content",
            "messages[1].content is bad",
            "input[3].content",
            "input[3].content is bad",
        ),
        ("messages", "the chat template refused: x", "input", "the chat template refused: x"),
        ("prompt", "prompt must leave room", "input", "input must leave room"),
        ("tools", "a prompt with tools", "tools", "a prompt with tools"),
        ("messages", "it says messages[2]", "input", "it says messages[2]"),
        (None, "words", None, "words"),
        ("messages", "messages must leave room", "input", "input must leave room"),
        (
            "response_format.json_schema.schema.properties.max_tokens.not",
            "response_format.json_schema.schema.properties.max_tokens.not cannot be enforced",
            "text.format.schema.properties.max_tokens.not",
            "text.format.schema.properties.max_tokens.not cannot be enforced",
        ),
    ],
)
def test_renamed(param: str | None, message: str, told_param: str | None, told: str) -> None:
    error = renamed(bad_request(param, message, "a_code"), RENAMING, PLACES, "input")
    assert (error.param, error.message) == (told_param, told)
    assert (error.status, error.code) == (400, "a_code")
