"""Thoughts and calls of a whole server under load: none lost, every token counted, all of it true.

Prompts are in a template that the demo model does not know, so its thoughts are ended by their
budget and its calls are forced; what is forced is drawn under masks, with drafts of the EAGLE head
beside them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from demo import EAGLE_FOLDER
from tests.serving.chats import joined
from tests.serving.process import Server, counted, serve, wait_until_idle

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

TEMPLATE = (
    "{% for t in tools or [] %}# {{ t.function.name }}\n{% endfor %}"
    "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>"
    '{# <tool_call>{"name": ..., "arguments": ...}</tool_call> </think> #}'
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "maxLength": 12},
        "lines": {"type": "array", "items": {"type": "integer", "maximum": 999}, "maxItems": 2},
    },
    "required": ["path", "lines"],
    "additionalProperties": False,
}
TOOLS: dict[str, Any] = {
    "tools": [
        {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
        for name in ("read_file", "write_file")
    ],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
MOST_THOUGHTS = 12
NUM_ROWS = 256


def flags(folder: Path, **speculation: Any) -> list[str]:
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    found = ["--chat-template", str(template), "--max-model-len", "512"]
    found += ["--max-num-seqs", str(NUM_ROWS), "--max-num-batched-tokens", "1024"]
    if speculation:
        config = {"model": str(EAGLE_FOLDER), "method": "eagle", "num_speculative_tokens": 3}
        found += ["--speculative-config", json.dumps(config | speculation)]
    return found


def body(index: int, **fields: Any) -> dict[str, Any]:
    """A chat; every other one must call a tool after its thoughts."""
    content = ("def read(path):", "import sys", "class Reader:")[index % 3]
    made: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"{content}  # {index}"}],
        "max_tokens": 200,
        "seed": index,
        "temperature": (0.0, 0.7, 1.0)[index % 3],
        "return_token_ids": True,
    }
    if index % 2:
        made |= {**TOOLS, "thinking_token_budget": index % (MOST_THOUGHTS + 1)}
        made["logit_bias"] = {"0": -100}  # a model may end its reply in its thoughts
    else:
        made |= {"max_tokens": 40}
    return made | fields


def send_all(server: Server, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The replies to chats that are sent at once; streams are joined to replies."""

    async def send() -> list[dict[str, Any]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=3000, limits=limits) as client:
            return await asyncio.gather(*(_send(client, each) for each in bodies))

    return asyncio.run(send())


async def _send(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    reply = await client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    if not body.get("stream"):
        whole: dict[str, Any] = reply.json()
        return whole
    return joined(reply.text)


def check(index: int, reply: dict[str, Any]) -> None:
    [choice] = reply["choices"]
    message, usage = choice["message"], reply["usage"]
    assert usage["completion_tokens"] == len(choice["token_ids"])
    thoughts = usage["completion_tokens_details"]["reasoning_tokens"]
    assert thoughts <= (index % (MOST_THOUGHTS + 1) if index % 2 else 40)
    for text in (message["content"], message.get("reasoning_content")):
        assert not any(marker in (text or "") for marker in MARKERS)
    if not index % 2:
        assert not message.get("tool_calls")
        return
    assert not message["content"]
    [call] = message["tool_calls"]
    assert call["function"]["name"] in ("read_file", "write_file")
    if choice["finish_reason"] == "tool_calls":
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)
    else:
        assert choice["finish_reason"] == "length"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("agents")
    with serve(*flags(folder, draft_sample_method="gumbel"), ready_s=600.0) as server:
        yield server


def test_many_rows_half_of_which_call_tools(server: Server) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for _ in range(2):
        before = server.metrics()
        bodies = [body(i, **(options if i % 4 > 1 else {})) for i in range(NUM_ROWS)]
        replies = send_all(server, bodies)
        for index, reply in enumerate(replies):
            check(index, reply)
        num_called = sum(r["choices"][0]["finish_reason"] == "tool_calls" for r in replies)
        assert num_called > NUM_ROWS // 3
        wait_until_idle(server)
        after = server.metrics()
        assert sum(reply["usage"]["completion_tokens"] for reply in replies) == counted(
            after, "generation_tokens_total"
        ) - counted(before, "generation_tokens_total")
        assert counted(after, "grammar_errors_total") == 0


def test_logprobs_of_each_part_are_those_of_the_same_ids_by_echo(server: Server) -> None:
    """Other steps, so float32 agrees to about 1e-5, as in `test_rescore.py`."""
    bodies = [body(i, logprobs=True) for i in range(1, 24, 2)]
    replies = send_all(server, bodies)
    worst: dict[str, float] = {}
    for reply in replies:
        [choice] = reply["choices"]
        prompt = choice["prompt_token_ids"]
        ids, tokens = choice["token_ids"], choice["logprobs"]["tokens"]
        assert [token["token_id"] for token in tokens] == ids
        packed = httpx.post(
            f"{server.url}/v1/completions",
            json={
                "prompt": prompt + ids,
                "max_tokens": 0,
                "echo": True,
                "logprobs": 0,
                "prompt_logprob_start": len(prompt),
            },
            timeout=600,
        ).json()
        rescored = packed["choices"][0]["logprobs"]["token_logprobs"][len(prompt) :]
        for token, new in zip(tokens, rescored, strict=True):
            gap = abs(token["logprob"] - new) / max(1.0, abs(new))
            worst[token["part"]] = max(worst.get(token["part"], 0.0), gap)
    assert set(worst) == {"reasoning", "markup", "tool"}
    assert max(worst.values()) < 1e-4, worst


def test_seeds_give_the_same_calls_with_and_without_coupled_drafts(tmp_path: Path) -> None:
    bodies = [body(i) for i in range(24)]
    found = []
    for speculation in ({}, {"rejection_sample_method": "coupled"}):
        with serve(*flags(tmp_path, **speculation), ready_s=600.0) as own:
            replies = send_all(own, bodies)
            for index, reply in enumerate(replies):
                check(index, reply)
            found.append([reply["choices"][0]["token_ids"] for reply in replies])
    assert found[0] == found[1]
