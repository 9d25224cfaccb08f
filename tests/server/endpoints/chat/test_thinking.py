"""Budgets of thoughts over HTTP, and answers under a grammar with thoughts or without."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.fake_grammar import follows_grammar
from tests.fakes import FakeEngine
from tests.server.conftest import in_process
from tests.server.endpoints.chat.chats import chat, stream
from tests.server.endpoints.chat.formats import FORMAT, SCHEMA
from tests.server.endpoints.chat.tool_replies import PLAIN, TEMPLATE, joined

OPEN = TEMPLATE.replace("[assistant]", "[assistant]<think>")
END = "</think>"


def engine(seed: int) -> FakeEngine:
    return FakeEngine(follows_grammar(seed), max_model_len=2048)


@pytest.mark.parametrize("seed", range(4))
async def test_thoughts_end_and_the_answer_keeps_to_its_format(seed: int) -> None:
    fields: dict[str, Any] = {
        "response_format": FORMAT,
        "thinking_token_budget": 7,
        "max_tokens": 1500,
        "seed": 5,
        "n": 3,
        "logprobs": True,
    }
    async with in_process(engine(seed), chat_template=OPEN) as site:
        reply = await chat(site, **fields)
        for choice in reply["choices"]:
            jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
            assert choice["finish_reason"] == "stop"
            parts = [token["part"] for token in choice["logprobs"]["tokens"]]
            assert parts[: 7 + len(END)].count("content") == 0
            assert parts.count("reasoning") <= 7
        assert 0 < reply["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 21
        chunks = await stream(site, **fields)
        for index, choice in enumerate(reply["choices"]):
            message = joined(chunks, index)
            assert message["content"] == choice["message"]["content"]
            assert message["reasoning_content"] == choice["message"]["reasoning_content"]


async def test_a_reply_may_skip_its_thoughts() -> None:
    """Each begins with the marker or with its answer, which keeps to the format in both cases."""
    kinds = set()
    async with in_process(engine(0), chat_template=TEMPLATE) as site:
        for seed in range(12):
            site.engine.script = follows_grammar(seed)
            reply = await chat(
                site, response_format=FORMAT, thinking_token_budget=4, max_tokens=1500
            )
            message = reply["choices"][0]["message"]
            jsonschema.validate(json.loads(message["content"]), SCHEMA)
            kinds.add("reasoning_content" in message)
    assert kinds == {True, False}


async def test_a_budget_without_a_grammar() -> None:
    async with in_process(engine(1), chat_template=OPEN) as site:
        reply = await chat(site, thinking_token_budget=0, max_tokens=40)
        [choice] = reply["choices"]
        assert "reasoning_content" not in choice["message"]
        assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
        request = site.engine.requests[-1]
        assert request.grammar is None
        assert request.params.constrained
        assert request.thinking_budget is not None
        assert request.thinking_budget.are_open


THINKING_MESSAGE = {
    "model": "fake",
    "max_tokens": 60,
    "messages": [{"role": "user", "content": "hi"}],
    "thinking": {"type": "enabled", "budget_tokens": 6},
}


async def test_a_message_s_budget() -> None:
    async with in_process(engine(2), chat_template=OPEN) as site:
        reply = await site.client.post("/v1/messages", json=THINKING_MESSAGE)
        body = reply.json()
        assert reply.status_code == 200, body
        assert [block["type"] for block in body["content"]] == ["thinking", "text"]
        budget = site.engine.requests[-1].thinking_budget
        assert budget is not None
        assert (budget.num_tokens, bytes(budget.end)) == (6, END.encode())


@pytest.mark.parametrize(
    ("template", "fields", "param"),
    [
        (PLAIN, {"thinking_token_budget": 5}, "thinking_token_budget"),
        (OPEN, {"thinking_token_budget": -1}, "thinking_token_budget"),
        (OPEN, {"thinking_token_budget": 5, "allowed_token_ids": [65, 66]}, "allowed_token_ids"),
        (OPEN, {"thinking_token_budget": 5, "bad_words": [">"]}, "bad_words"),
    ],
)
async def test_what_is_refused(template: str, fields: dict[str, Any], param: str) -> None:
    async with in_process(engine(0), chat_template=template) as site:
        error = await chat(site, 400, max_tokens=9, **fields)
        assert error["param"] == param
        assert not site.engine.requests


async def test_a_message_s_budget_where_thoughts_are_not_known() -> None:
    async with in_process(engine(0), chat_template=PLAIN) as site:
        reply = await site.client.post("/v1/messages", json=THINKING_MESSAGE)
        assert reply.status_code == 400
        assert reply.json()["error"]["message"].startswith("thinking.budget_tokens needs a model")
