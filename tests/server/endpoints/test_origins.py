"""`return_token_origin` over the fake engine, whose tokens come from each place in turn."""

from __future__ import annotations

from typing import Any

import pytest

from engine.messages.step_output import Origin
from tests.fakes import FakeEngine, origin_at, says
from tests.server.conftest import Site, in_process
from tests.server.endpoints.chat.chats import TEMPLATE, chat
from tests.server.endpoints.chat.chats import stream as chat_stream
from tests.server.endpoints.chat.tool_replies import REPLY, TOOLS
from tests.server.endpoints.chat.tool_replies import TEMPLATE as WITH_TOOLS

IN_TURN = [origin_at(position).name.lower() for position in range(16)]


def speculating(text: str = "abcXYZdef") -> FakeEngine:
    engine = FakeEngine(says(text))
    engine.speculates = True
    return engine


def joined(chunks: list[dict[str, Any]]) -> dict[int, list[str]]:
    """The origins of each choice of a stream, one for each of its ids."""
    reported: dict[int, list[str]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            origins = part.get("token_origins", [])
            assert len(origins) == len(part.get("token_ids", []))
            reported.setdefault(part["index"], []).extend(origins)
    return reported


CUTS: list[dict[str, Any]] = [
    {},
    {"n": 2},
    {"stop": ["XYZ"]},
    {"stop": ["YZ"], "include_stop_str_in_output": True},
    {"stream_interval": 4},
    {"logprobs": 1, "logprobs_format": "packed"},
    {"max_tokens": 0, "logprob_token_ids": [5]},
]


@pytest.mark.parametrize("fields", CUTS)
async def test_completions(fields: dict[str, Any]) -> None:
    wish = {"return_token_origin": True, "return_token_ids": True, **fields}
    async with in_process(speculating()) as site:
        choices = (await site.complete(prompt="ab", **wish))["choices"]
        for choice in choices:
            assert choice["token_origins"] == IN_TURN[: len(choice["token_ids"])]
        reported = joined(await site.stream(prompt="ab", **wish))
        assert [reported[i] for i in sorted(reported)] == [
            choice["token_origins"] for choice in choices
        ]


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"stop": ["XYZ"]}])
async def test_chats(fields: dict[str, Any]) -> None:
    wish = {"return_token_origin": True, "return_token_ids": True, **fields}
    async with in_process(speculating(), chat_template=TEMPLATE) as site:
        choices = (await chat(site, **wish))["choices"]
        for choice in choices:
            assert choice["token_origins"] == IN_TURN[: len(choice["token_ids"])]
        reported = joined(await chat_stream(site, **wish))
        assert [reported[i] for i in sorted(reported)] == [
            choice["token_origins"] for choice in choices
        ]


async def test_replies_that_are_taken_apart() -> None:
    """Tokens of a call wait until it is clear what they are."""
    wish = {"return_token_origin": True, "return_token_ids": True, **TOOLS}
    async with in_process(speculating(REPLY), chat_template=WITH_TOOLS) as site:
        [choice] = (await chat(site, **wish))["choices"]
        assert len(choice["message"]["tool_calls"]) == 2
        wanted = [origin_at(i).name.lower() for i in range(len(choice["token_ids"]))]
        assert choice["token_origins"] == wanted
        assert joined(await chat_stream(site, **wish)) == {0: wanted}


async def test_the_prompt_has_none(site: Site) -> None:
    site.engine.speculates = True
    wish = {"echo": True, "logprobs": 0, "return_token_origin": True}
    [choice] = (await site.complete(prompt="abcd", max_tokens=2, **wish))["choices"]
    assert len(choice["logprobs"]["tokens"]) == 6
    assert choice["token_origins"] == IN_TURN[:2]


async def test_without_a_drafter_every_token_is_drawn(site: Site) -> None:
    wish = {"max_tokens": 3, "return_token_origin": True}
    [choice] = (await site.complete(prompt="ab", **wish))["choices"]
    assert choice["token_origins"] == [Origin.DRAWN.name.lower()] * 3


async def test_not_asked_for(site: Site) -> None:
    site.engine.speculates = True
    for fields in ({}, {"return_token_origin": False}):
        [choice] = (await site.complete(prompt="ab", max_tokens=2, **fields))["choices"]
        assert "token_origins" not in choice
        assert not site.engine.requests[-1].report_origins
