"""Replies of any size: the same bytes, in parts that let others in between."""

from __future__ import annotations

from typing import Any

import pytest

from server.http.reply import PART_BYTES, json_reply
from tests.server.waits import Turns


async def sent(raw: bytes) -> list[dict[str, Any]]:
    """The messages of a reply."""
    messages: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    await json_reply(raw)({"type": "http"}, receive, send)
    return messages


@pytest.mark.parametrize(
    "length", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES, 3 * PART_BYTES + 5]
)
async def test_the_body_is_whole_and_its_length_known(length: int) -> None:
    raw = bytes(i % 251 for i in range(251)) * (length // 251 + 1)
    start, *parts = await sent(raw[:length])
    headers = dict(start["headers"])
    assert start["status"] == 200
    assert headers[b"content-length"] == str(length).encode()
    assert headers[b"content-type"] == b"application/json"
    assert b"".join(part["body"] for part in parts) == raw[:length]
    assert [part.get("more_body", False) for part in parts] == [True] * (len(parts) - 1) + [False]
    assert max(len(part["body"]) for part in parts) <= PART_BYTES


async def test_others_have_their_turns_between_parts() -> None:
    with Turns() as turns:
        await sent(b"x" * 10 * PART_BYTES)
    assert turns.count >= 8
