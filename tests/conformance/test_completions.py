"""What any OpenAI-compatible completions server should do; says nothing about this one.

CONFORMANCE_BASE_URL=http://127.0.0.1:8000 python -m pytest tests/conformance
"""

from __future__ import annotations

import json
import os
from typing import Any

import httpx
import pytest

PROMPT = "The quick brown fox"


async def complete(api: httpx.AsyncClient, model: str, **body: Any) -> dict[str, Any]:
    body = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": 8, **body}
    reply = await api.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    parsed: dict[str, Any] = json.loads(reply.text, parse_constant=pytest.fail)
    return parsed


async def stream(api: httpx.AsyncClient, model: str, **body: Any) -> list[dict[str, Any]]:
    body = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": 8, **body}
    reply = await api.post("/v1/completions", json={**body, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


async def test_shape(api: httpx.AsyncClient, model: str) -> None:
    reply = await complete(api, model)
    assert reply["object"] == "text_completion"
    (choice,) = reply["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] in ("stop", "length")
    usage = reply["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 1 <= usage["completion_tokens"] <= 8


async def test_greedy_repeats_and_a_stream_joins_to_the_same(
    api: httpx.AsyncClient, model: str
) -> None:
    text = (await complete(api, model))["choices"][0]["text"]
    assert (await complete(api, model))["choices"][0]["text"] == text
    chunks = await stream(api, model)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


async def test_usage_in_a_stream(api: httpx.AsyncClient, model: str) -> None:
    plain = await complete(api, model)
    chunks = await stream(api, model, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]


async def test_prompt_lists_times_n(api: httpx.AsyncClient, model: str) -> None:
    reply = await complete(api, model, prompt=[PROMPT, "One two"], n=2, temperature=1)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]


async def test_a_seed_repeats(api: httpx.AsyncClient, model: str) -> None:
    texts = [
        (await complete(api, model, temperature=1, seed=7))["choices"][0]["text"] for _ in range(2)
    ]
    assert texts[0] == texts[1]


async def test_echo_and_logprobs_line_up(api: httpx.AsyncClient, model: str) -> None:
    reply = await complete(api, model, echo=True, logprobs=2, max_tokens=1)
    (choice,) = reply["choices"]
    assert choice["text"].startswith(PROMPT)
    logprobs = choice["logprobs"]
    count = reply["usage"]["total_tokens"]
    for column in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert len(logprobs[column]) == count
    assert logprobs["token_logprobs"][0] is None
    values, tops = logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:]
    assert all(
        value <= 0 and value in top.values() for value, top in zip(values, tops, strict=True)
    )
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])


@pytest.mark.skipif("CONFORMANCE_BASE_URL" not in os.environ, reason="the fake is not greedy")
async def test_a_greedy_token_equals_the_best_of_its_top_list(
    api: httpx.AsyncClient, model: str
) -> None:
    logprobs = (await complete(api, model, logprobs=2))["choices"][0]["logprobs"]
    for value, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert value == max(top.values())


async def test_a_stop_string_cuts_the_text(api: httpx.AsyncClient, model: str) -> None:
    text = (await complete(api, model, max_tokens=16))["choices"][0]["text"]
    stop = text[2:4]
    choice = (await complete(api, model, max_tokens=16, stop=stop))["choices"][0]
    assert choice["text"] == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": -1},
        {"max_tokens": -1},
        {"top_p": 2},
        {"n": 0},
        {"prompt": []},
        {"prompt": [-1]},
        {"max_tokens": "many"},
        {"logprobs": -5},
        {"stop": [5]},
    ],
)
async def test_bad_input_is_a_4xx_with_a_nested_error(
    api: httpx.AsyncClient, model: str, body: dict[str, Any]
) -> None:
    reply = await api.post("/v1/completions", json={"model": model, "prompt": PROMPT, **body})
    assert 400 <= reply.status_code < 500
    error = reply.json()["error"]
    assert error["message"]
    assert set(error) >= {"message", "type", "param", "code"}


async def test_an_unknown_model_is_404(api: httpx.AsyncClient) -> None:
    reply = await api.post("/v1/completions", json={"model": "no-such-model", "prompt": "a"})
    assert reply.status_code == 404
    assert reply.json()["error"]["message"]
