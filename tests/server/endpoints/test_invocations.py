"""`/invocations` answers as the route that a body's fields belong to."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from server.http.body import INLINE_BYTES
from tests.fakes import FakeEngine
from tests.server.conftest import MODEL, Site, error_of, in_process
from tests.server.endpoints.chat.chats import TEMPLATE

MESSAGES = [{"role": "user", "content": "a"}]
PAIR: dict[str, Any] = {"text_1": "a", "text_2": ["b", "c"]}
RERANK: dict[str, Any] = {"query": "a", "documents": ["b", "c"]}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3, "seed": 1}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 3, "seed": 1}),
    ("/v1/completions", {"prompt": [97, 98], "max_tokens": 3, "seed": 1}),
    ("/v1/embeddings", {"input": ["a", "b"]}),
    ("/v1/rerank", RERANK),
    ("/v1/rerank", {"query": "a", "texts": ["b", "c"]}),
    ("/v1/score", PAIR),
    ("/v1/score", {"queries": "a", "documents": ["b"]}),
    ("/v1/score", {"query": "a", "documents": None, "items": ["b"], "labels": ["c", "d"]}),
]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    engine = FakeEngine(max_model_len=256)
    templates: dict[str, Any] = {
        "chat_template": TEMPLATE,
        "rerank_template": "{{ query }} {{ document }}",
    }
    async with in_process(engine, **templates) as made:
        yield made


def without_times(reply: Any) -> Any:
    return {k: v for k, v in reply.items() if k != "created"} if isinstance(reply, dict) else reply


@pytest.mark.parametrize(("path", "body"), CASES)
async def test_replies_are_those_of_the_route(site: Site, path: str, body: dict[str, Any]) -> None:
    body = {"model": MODEL, "request_id": "same"} | body
    want = await site.client.post(path, json=body)
    got = await site.client.post("/invocations", json=body)
    assert want.status_code == got.status_code == 200, (want.text, got.text)
    assert without_times(got.json()) == without_times(want.json())


async def test_streams_compressed_and_large_bodies(site: Site) -> None:
    body = {"prompt": "a", "max_tokens": 3, "stream": True}
    reply = await site.client.post("/invocations", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.text.endswith("data: [DONE]\n\n")
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    packed = gzip.compress(json.dumps({"prompt": "a", "max_tokens": 1}).encode())
    reply = await site.client.post("/invocations", content=packed, headers=headers)
    assert reply.json()["object"] == "text_completion"
    large = {"user": "x" * INLINE_BYTES, "prompt": "a", "max_tokens": 1}
    reply = await site.client.post("/invocations", json=large)
    assert reply.json()["object"] == "text_completion"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{}", "must have messages, prompt, input, query with documents, items"),
        (b'{"messages": null, "temperature": 1}', "must have messages, prompt"),
        (b'{"query": "a"}', "must have messages, prompt"),
        (b"[1]", "not a JSON object"),
        (b'{"prompt": "a"', "not a JSON object"),
        (b'{"prompt": "a", "messagse": 1}', "unknown field 'messagse'"),
        (b'{"messages": [], "prompt": "a"}', "unknown field 'prompt'"),
    ],
)
async def test_refusals(site: Site, content: bytes, words: str) -> None:
    headers = {"content-type": "application/json"}
    reply = await site.client.post("/invocations", content=content, headers=headers)
    assert reply.status_code == 400
    assert words in error_of(reply)["message"]


async def test_requests_are_counted(site: Site) -> None:
    await site.client.post("/invocations", json={"prompt": "a", "max_tokens": 1})
    await site.client.post("/invocations", json={})
    text = site.context.metrics.exposition().decode()
    outcomes = [
        line for line in text.splitlines() if "outcome=" in line and not line.endswith(" 0.0")
    ]
    assert sum(float(line.split()[-1]) for line in outcomes if "_created" not in line) == 2
