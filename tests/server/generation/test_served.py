"""Fingerprints of replies that are drawn while weights are updated."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from engine.contracts.control import EngineState
from engine.messages.request import Request
from engine.messages.step_output import Finish
from server.generation.served import ReplyFingerprint
from server.version import VERSION
from tests.fakes import FakeEngine
from tests.server.conftest import in_process
from tests.server.endpoints.chat.tool_replies import TEMPLATE
from tests.server.generation.pieces import entry

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "ab", "max_tokens": 3},
    "/v1/chat/completions": {**CHAT, "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3},
    "/inference/v1/generate": {"token_ids": [5, 6], "sampling_params": {"max_tokens": 3}},
}


class UpdatedEngine(FakeEngine):
    """An engine whose weights are updated before it draws a choice's token of a number."""

    def __init__(self, updated_at: int) -> None:
        super().__init__(self._draw)
        self.state = EngineState(weight_tag="old")
        self._updated_at = updated_at

    def _draw(self, request: Request, choice: int, position: int) -> int | Finish:
        if position == self._updated_at:
            self.state = msgspec.structs.replace(self.state, weight_tag="new")
        return 97


def fingerprint(tag: str) -> str:
    return f"tailrace-{VERSION}-{tag}"


def in_events(body: str) -> list[str]:
    """The fingerprints in the events of a stream."""
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    holders = [event.get("response", event) for event in events]
    return [each["system_fingerprint"] for each in holders if each.get("system_fingerprint")]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("updated_at", "tag"), [(0, "new"), (2, "new"), (3, "old")])
async def test_a_reply_names_the_weights_that_drew_its_last_token(
    path: str, updated_at: int, tag: str
) -> None:
    """Not those of when it was asked for, or of when it is written."""
    async with in_process(UpdatedEngine(updated_at), chat_template=TEMPLATE) as site:
        reply = (await site.client.post(path, json=BODIES[path])).json()
        assert reply["system_fingerprint"] == fingerprint(tag)
        site.engine.state = EngineState(weight_tag="old")
        streamed = (await site.client.post(path, json=BODIES[path] | {"stream": True})).text
        assert in_events(streamed)[-1] == fingerprint(tag)


async def test_chunks_name_the_weights_of_their_time() -> None:
    async with in_process(UpdatedEngine(2)) as site:
        body = BODIES["/v1/completions"] | {"stream": True}
        found = in_events((await site.client.post("/v1/completions", json=body)).text)
    assert found == [fingerprint("old")] * 2 + [fingerprint("new")]


def test_an_end_without_tokens_leaves_it() -> None:
    """A choice that is aborted after an update drew nothing by the new weights."""
    own = ReplyFingerprint("head", "1", "tail")
    for tokens, finish, tag, wanted in (
        (b"", Finish.RUNNING, "2", "head-2-tail"),
        (b"a", Finish.RUNNING, "3", "head-3-tail"),
        (b"", Finish.ABORT, "4", "head-3-tail"),
    ):
        output = msgspec.structs.replace(entry(tokens, finish).output, weight_tag=tag)
        own.note(entry(tokens, finish)._replace(output=output))
        assert str(own) == wanted
    assert str(ReplyFingerprint("head", "", "")) == "head"
