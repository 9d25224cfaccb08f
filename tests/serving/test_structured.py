"""Structured output of a whole server: valid, true to its logprobs, and as clients ask for it.

Logprobs of a generation and of the same ids read as a prompt come from other steps, so in float32
they agree to about 1e-5; values are compared within 1e-4 * max(1, |value|), as in
`tests/serving/test_rescore.py`.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Literal

import httpx
import jsonschema
import numpy as np
import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI
from pydantic import BaseModel

from tests.schema_suite import names_a_keyword, schema_suite
from tests.serving.process import Server, serve
from tests.serving.schemas import random_schema

MODEL = "tailrace-demo"
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["function", "class", "module"]},
        "lines": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["kind", "lines"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "found", "schema": SCHEMA}}
MESSAGES: Any = [{"role": "user", "content": "What is `def main():`?"}]
FAST, SLOW = 40, 2000


class Found(BaseModel):
    """What a client wants parsed."""

    kind: Literal["function", "class", "module"]
    lines: list[int]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve("--max-num-seqs", "32", "--max-model-len", "1024", ready_s=300.0) as server:
        yield server


async def replies_to(
    server: Server, path: str, bodies: list[dict[str, Any]]
) -> list[httpx.Response]:
    """All replies, of at most 32 requests at a time."""
    slots = asyncio.Semaphore(32)
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:

        async def post(body: dict[str, Any]) -> httpx.Response:
            async with slots:
                return await client.post(path, json=body)

        return await asyncio.gather(*map(post, bodies))


def choices_of(server: Server, path: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    replies = asyncio.run(replies_to(server, path, bodies))
    assert all(reply.status_code == 200 for reply in replies), replies[0].text
    return [reply.json()["choices"][0] for reply in replies]


@pytest.mark.parametrize(
    "count",
    [FAST, pytest.param(SLOW, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_finished_replies_are_valid(count: int, server: Server) -> None:
    """And every refused schema names its keyword."""
    rng = random.Random(count)
    schemas = [random_schema(rng) for _ in range(count)]
    bodies = [
        {
            "prompt": "import json\njson.loads('",
            "max_tokens": 200,
            "seed": seed,
            "temperature": 0.7,
            "structured_outputs": {"json": schema},
        }
        for schema in schemas
        for seed in (1, 2)
    ]
    replies = asyncio.run(replies_to(server, "/v1/completions", bodies))
    num_finished = 0
    for body, reply in zip(bodies, replies, strict=True):
        schema = body["structured_outputs"]["json"]  # type: ignore[index]
        if reply.status_code == 400:
            error = reply.json()["error"]
            assert error["code"] == "grammar_refused", (schema, error)
            keyword = error["param"].rsplit(".", 1)[-1]
            assert f'"{keyword}"' in json.dumps(schema), (schema, error)
            continue
        assert reply.status_code == 200, (schema, reply.text)
        [choice] = reply.json()["choices"]
        if choice["finish_reason"] == "stop":
            num_finished += 1
            jsonschema.validate(json.loads(choice["text"]), schema)
    assert num_finished > count  # of twice as many


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_replies_under_the_test_suite_s_schemas_are_valid(server: Server) -> None:
    """Replies under each of its schemas; and every refusal names its keyword.

    Numbers are read exactly: in floats 1.2142 would be no multiple of 0.0001.
    """
    unicode = "p{"  # Python's expressions, which would validate, do not know Unicode's classes
    schemas = [case.schema for case in schema_suite() if unicode not in json.dumps(case.schema)]
    bodies = [
        {
            "prompt": "json.loads('",
            "max_tokens": 120,
            "seed": seed,
            "temperature": 0.7,
            "structured_outputs": {"json": schema},
        }
        for schema in schemas
        for seed in (1, 2, 3)
    ]
    replies = asyncio.run(replies_to(server, "/v1/completions", bodies))
    finished = refused = 0
    for body, reply in zip(bodies, replies, strict=True):
        schema = body["structured_outputs"]["json"]  # type: ignore[index]
        if reply.status_code == 400:
            error = reply.json()["error"]
            assert names_a_keyword(error["param"], schema), (schema, error)
            refused += 1
            continue
        assert reply.status_code == 200, (schema, reply.text)
        [choice] = reply.json()["choices"]
        if choice["finish_reason"] == "stop":
            finished += 1
            reply_value, exact = (
                json.loads(text, parse_float=Decimal)
                for text in (choice["text"], json.dumps(schema))
            )
            jsonschema.Draft202012Validator(exact).validate(reply_value)
    assert finished > 100
    assert refused > 600


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"choice": ["yes", "no", "maybe"]}, "temperature": 0.7},
        {"structured_outputs": {"regex": "[a-z]{3,30}"}, "top_p": 0.8, "top_k": 5},
        {"top_p": 0.5, "min_p": 0.05, "temperature": 1.5},
        {"structured_outputs": {"regex": "[a-z]+"}, "temperature": 0.0},
    ],
)
def test_processed_and_kept_are_the_untruncated_logprob(
    fields: dict[str, Any], server: Server
) -> None:
    """At the request's temperature, which is 1 for a greedy row."""
    temperature = fields.get("temperature", 1.0) or 1.0
    shared = {
        "prompt": "def main():\n",
        "max_tokens": 40,
        "seed": 3,
        "logprobs": 0,
        "kept_logprob": True,
        **fields,
    }
    modes = ("processed_logprobs", "raw_logits")
    # One after the other: float32 sums of a step depend on how many rows it has.
    processed, logits = (
        choice
        for mode in modes
        for choice in choices_of(server, "/v1/completions", [{**shared, "logprobs_mode": mode}])
    )
    assert processed["logprobs"]["token_ids"] == logits["logprobs"]["token_ids"]
    assert processed["kept_logprobs"] == logits["kept_logprobs"]
    kept = np.array(processed["kept_logprobs"])
    assert (kept <= 1e-6).all()
    assert (kept < -1e-3).any()
    found = np.array(processed["logprobs"]["token_logprobs"]) + kept
    wanted = _at_temperature(server, processed["logprobs"]["token_ids"], temperature)
    assert np.abs(found - wanted).max() <= 1e-4 * max(1.0, float(np.abs(wanted).max()))


def _at_temperature(server: Server, token_ids: list[int], temperature: float) -> np.ndarray:
    """The logprobs of ids after the prompt at a temperature, read as a prompt."""
    prompt = httpx.post(f"{server.url}/tokenize", json={"prompt": "def main():\n"}).json()["tokens"]
    body = {
        "prompt": [*prompt, *token_ids],
        "max_tokens": 0,
        "echo": True,
        "logprobs": 0,
        "logprobs_mode": "processed_logprobs",
        "temperature": temperature,
    }
    [choice] = choices_of(server, "/v1/completions", [body])
    return np.array(choice["logprobs"]["token_logprobs"][len(prompt) :])


def test_a_constrained_chat_is_rescored_by_its_ids(server: Server) -> None:
    fields: dict[str, Any] = {"messages": MESSAGES, "response_format": FORMAT, "max_tokens": 80}
    fields |= {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}
    bodies = [{**fields, "seed": seed} for seed in range(4)]
    for body in bodies:
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
        [choice], prompt = reply["choices"], reply["prompt_token_ids"]
        said = [*prompt, *choice["token_ids"]]
        again = {"prompt": said, "max_tokens": 0, "echo": True, "logprobs": 0}
        [echo] = choices_of(server, "/v1/completions", [again])
        wanted = echo["logprobs"]["token_logprobs"][len(prompt) :]
        content = choice["logprobs"]["content"]
        spoken = [bytes(entry["bytes"]) for entry in content]
        assert b"".join(spoken).decode() == choice["message"]["content"]
        tokens = choice["logprobs"]["tokens"]
        for token, value in zip(tokens, wanted, strict=True):
            assert abs(token["logprob"] - value) <= 1e-4 * max(1.0, abs(value))
        shown = [token["logprob"] for token in tokens if token["part"] == "content"]
        assert [entry["logprob"] for entry in content] == shown
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


def test_a_seed_draws_the_same_beside_others(server: Server) -> None:
    body = {"prompt": "x", "max_tokens": 60, "seed": 9, "structured_outputs": {"json": SCHEMA}}
    others = [{**body, "seed": seed} for seed in range(100, 108)]
    [alone] = choices_of(server, "/v1/completions", [body])
    together = choices_of(server, "/v1/completions", [*others, body])
    assert together[-1]["text"] == alone["text"]
    assert len({choice["text"] for choice in together}) > 1


class TestOpenAI:
    """The `openai` package, with nothing of ours."""

    def test_parse(self, server: Server) -> None:
        reply = server.client.chat.completions.parse(
            model=MODEL, messages=MESSAGES, response_format=Found, max_tokens=300, seed=1
        )
        assert isinstance(reply.choices[0].message.parsed, Found)

    def test_parse_asynchronously(self, server: Server) -> None:
        async def ask() -> Found | None:
            async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
                reply = await client.chat.completions.parse(
                    model=MODEL, messages=MESSAGES, response_format=Found, max_tokens=300, seed=3
                )
                return reply.choices[0].message.parsed

        assert isinstance(asyncio.run(ask()), Found)

    def test_stream(self, server: Server) -> None:
        with server.client.chat.completions.stream(
            model=MODEL,
            messages=MESSAGES,
            response_format=Found,
            max_tokens=300,
            seed=1,
            logprobs=True,
            stream_options={"include_usage": True},
        ) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        assert {"content.delta", "content.done", "chunk", "logprobs.content.delta"} <= kinds
        message = final.choices[0].message
        assert isinstance(message.parsed, Found)
        logprobs = final.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        spoken = b"".join(bytes(entry.bytes or []) for entry in logprobs.content)
        assert spoken.decode() == message.content
        assert final.usage is not None

    def test_extra_body(self, server: Server) -> None:
        client: OpenAI = server.client
        extra: dict[str, Any] = {"structured_outputs": {"choice": ["yes", "no"]}}
        chat = client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=extra)
        completion = client.completions.create(model=MODEL, prompt="x", extra_body=extra)
        assert chat.choices[0].message.content in ("yes", "no")
        assert completion.choices[0].text in ("yes", "no")

    def test_a_refusal_is_an_error_of_its_own_class(self, server: Server) -> None:
        schema = {"type": "object", "not": {}}
        wish: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        with pytest.raises(BadRequestError) as caught:
            server.client.chat.completions.create(
                model=MODEL, messages=MESSAGES, response_format=wish
            )
        assert caught.value.param == "response_format.json_schema.schema.not"
