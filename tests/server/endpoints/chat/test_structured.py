"""Grammars over HTTP: what the engine is given, what clients get, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import jsonschema
import pytest

from engine.messages.step_output import Finish
from tests.fake_grammar import follows_grammar
from tests.fakes import BOS, EOS, FakeEngine, says
from tests.server.conftest import (
    MODEL,
    Site,
    chunks_of,
    error_of,
    eventually,
    in_process,
    on_a_port,
)
from tests.server.endpoints.chat.chats import TEMPLATE, chat
from tests.server.endpoints.chat.chats import stream as chat_stream
from tests.server.endpoints.chat.formats import FORMAT, SCHEMA
from tests.server.structured.slow_grammars import NEVER_ENDS

CHOICE: dict[str, Any] = {"structured_outputs": {"choice": ["yes", "no"]}}


def engine(seed: int = 0) -> FakeEngine:
    return FakeEngine(follows_grammar(seed), max_model_len=2048)


class TestReplies:
    async def test_each_kind_on_completions(self) -> None:
        wishes: list[tuple[dict[str, Any], Any]] = [
            (
                {"response_format": FORMAT},
                lambda text: jsonschema.validate(json.loads(text), SCHEMA),
            ),
            ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, json.loads),
            ({"structured_outputs": {"regex": "[ab]{2}c"}}, ["aac", "abc", "bac", "bbc"].index),
            (CHOICE, ["yes", "no"].index),
            ({"structured_outputs": {"grammar": 'root ::= "x"{3}'}}, ["xxx"].index),
        ]
        async with in_process(engine()) as site:
            for fields, check in wishes:
                [choice] = (await site.complete(prompt="x", max_tokens=900, **fields))["choices"]
                assert choice["finish_reason"] == "stop"
                assert choice["stop_reason"] is None
                check(choice["text"])

    async def test_choices_of_a_chat(self) -> None:
        async with in_process(engine(), chat_template=TEMPLATE) as site:
            reply = await chat(site, n=4, response_format=FORMAT, max_tokens=900)
            texts = [choice["message"]["content"] for choice in reply["choices"]]
            for text in texts:
                jsonschema.validate(json.loads(text), SCHEMA)
            assert len(set(texts)) > 1
            request = site.engine.requests[-1]
            assert request.params.constrained
            assert request.grammar is not None
            assert request.grammar.after == ()

    async def test_without_one_nothing_is_constrained(self) -> None:
        async with in_process() as site:
            request = await site.submitted(response_format={"type": "text"})
            assert request.grammar is None
            assert not request.params.constrained

    async def test_a_joined_stream_is_the_reply(self) -> None:
        fields: dict[str, Any] = {
            "response_format": FORMAT,
            "max_tokens": 900,
            "seed": 5,
            "logprobs": True,
            "kept_logprob": True,
        }
        async with in_process(engine(), chat_template=TEMPLATE) as site:
            [plain] = (await chat(site, **fields))["choices"]
            chunks = [chunk["choices"][0] for chunk in await chat_stream(site, **fields)]
            joined = "".join(chunk["delta"].get("content", "") for chunk in chunks)
            assert joined == plain["message"]["content"]
            tokens = [token for chunk in chunks for token in chunk["logprobs"]["tokens"]]
            assert tokens == plain["logprobs"]["tokens"]
            kept = [value for chunk in chunks for value in chunk["kept_logprobs"]]
            assert kept == plain["kept_logprobs"]

    async def test_echo_and_nothing_generated(self) -> None:
        async with in_process(engine()) as site:
            fields: dict[str, Any] = {"max_tokens": 0, "echo": True, "logprobs": 1, **CHOICE}
            [choice] = (await site.complete(prompt="ab", **fields))["choices"]
            assert choice["text"] == "ab"
            assert len(choice["logprobs"]["token_logprobs"]) == 2

    async def test_lenient_tells_what_was_dropped(self) -> None:
        schema = {**SCHEMA, "not": {"pattern": "x"}}
        wish = {"structured_outputs": {"json": schema, "lenient": True}, "max_tokens": 900}
        async with in_process(engine()) as site:
            reply = await site.complete(prompt="x", **wish)
            assert reply["ignored_keywords"] == ["structured_outputs.json.not"]
            chunks = await site.stream(prompt="x", **wish)
            assert chunks[-1]["ignored_keywords"] == reply["ignored_keywords"]
            assert not any("ignored_keywords" in chunk for chunk in chunks[:-1])
            reply = await site.complete(prompt="x", max_tokens=900, response_format=FORMAT)
            assert "ignored_keywords" not in reply


class TestKeptLogprobs:
    @pytest.mark.parametrize("fields", [{}, {"logprobs": 2}, {"logprob_token_ids": [5]}])
    async def test_one_for_each_token(self, fields: dict[str, Any]) -> None:
        async with in_process() as site:
            reply = await site.complete(prompt="ab", max_tokens=4, kept_logprob=True, **fields)
            [choice] = reply["choices"]
            assert choice["kept_logprobs"] == [0.0, -0.125, -0.25, -0.375]
            assert (choice["logprobs"] is None) == ("logprobs" not in fields)
            assert site.engine.requests[-1].params.kept_logprob

    async def test_packed(self) -> None:
        async with in_process() as site:
            wish: dict[str, Any] = {"kept_logprob": True, "logprobs_format": "packed"}
            [choice] = (await site.complete(prompt="ab", max_tokens=4, **wish))["choices"]
            assert (choice["kept_logprobs"]["dtype"], choice["kept_logprobs"]["shape"]) == (
                *("<f4", [4]),
            )

    async def test_streams_and_stop_strings(self) -> None:
        async with in_process(FakeEngine(says("abcXYZdef")), chat_template=TEMPLATE) as site:
            for fields in ({}, {"stop": ["XYZ"]}, {"stop": ["YZ"], "n": 2}):
                wish: dict[str, Any] = {"kept_logprob": True, "return_token_ids": True, **fields}
                plain = (await chat(site, **wish))["choices"]
                joined: dict[int, list[float]] = {}
                for chunk in await chat_stream(site, **wish):
                    [part] = chunk["choices"]
                    joined.setdefault(part["index"], []).extend(part["kept_logprobs"])
                for choice in plain:
                    assert choice["kept_logprobs"] == joined[choice["index"]]
                    assert len(choice["kept_logprobs"]) == len(choice["token_ids"])

    async def test_not_asked_for(self) -> None:
        async with in_process() as site:
            [choice] = (await site.complete(prompt="ab", max_tokens=2))["choices"]
            assert "kept_logprobs" not in choice


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "param", "words"),
        [
            ({"ignore_eos": True}, "ignore_eos", "structured_outputs.choice"),
            ({"allowed_token_ids": [*b"yesno"]}, "allowed_token_ids", "256"),
            ({"bad_words": ["<eos>"]}, "bad_words", "256"),
            ({"allowed_token_ids": [EOS, *b"xz"]}, "allowed_token_ids", "begin with"),
            ({"bad_words": ["y", "n"]}, "bad_words", "begin with"),
        ],
    )
    async def test_contradictions(self, fields: dict[str, Any], param: str, words: str) -> None:
        async with in_process() as site:
            error = await site.refused(prompt="x", **CHOICE, **fields)
            assert error["param"] == param
            assert words in error["message"]
            assert not site.engine.requests

    @pytest.mark.parametrize("kind", ["regex", "grammar"])
    async def test_sources_have_65536_characters_at_most(self, kind: str) -> None:
        begin, pad = {"regex": ("x", "x"), "grammar": ('root ::= "x"\n#', "-")}[kind]
        longest = begin + pad * (2**16 - len(begin))
        async with in_process(engine(), chat_template=TEMPLATE) as site:
            wish: dict[str, Any] = {"structured_outputs": {kind: longest + pad}}
            for error in (await site.refused(prompt="x", **wish), await chat(site, 400, **wish)):
                assert error["param"] == f"structured_outputs.{kind}"
                assert "too long: at most 65536" in error["message"]
            assert not site.engine.requests
            reply = await site.complete(prompt="x", structured_outputs={kind: longest})
            assert reply["choices"][0]["text"].startswith("x")

    async def test_an_end_that_min_tokens_masks(self) -> None:
        wish: dict[str, Any] = {"structured_outputs": {"choice": [""]}, "min_tokens": 1}
        async with in_process(engine()) as site:
            error = await site.refused(prompt="x", **wish)
            assert (error["param"], error["code"]) == ("min_tokens", "no_token_allowed")
            await site.complete(prompt="x", **CHOICE, min_tokens=1)

    async def test_other_masks_are_fine(self) -> None:
        async with in_process(engine()) as site:
            fields: dict[str, Any] = {"allowed_token_ids": [EOS, BOS, *b"yesno"]}
            await site.complete(prompt="x", **CHOICE, **fields, bad_words=["x"])
            await site.complete(prompt="x", **CHOICE, logit_bias={str(EOS): -100})
            assert [each.grammar is not None for each in site.engine.requests] == [True, True]

    async def test_a_keyword_is_named_in_the_bodys_own_words(self) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
        wish = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        async with in_process(chat_template=TEMPLATE) as site:
            error = await chat(site, 400, response_format=wish)
            path = "response_format.json_schema.schema.properties.a.uniqueItems"
            assert (error["param"], error["code"]) == (path, "grammar_refused")
            assert error["type"] == "invalid_request_error"
            assert not site.engine.requests

    async def test_others_are_not_disturbed_by_one_that_never_ends(self) -> None:
        async with on_a_port() as site:
            body = {"prompt": "x", "structured_outputs": {"json": NEVER_ENDS}}
            await site.client.post(
                "/v1/completions", json={**body, "structured_outputs": {"choice": ["a"]}}
            )
            endless = asyncio.create_task(site.client.post("/v1/completions", json=body))
            await eventually(site.context.grammars._pool._idle.empty)  # its check is under way
            for _ in range(5):
                await site.complete(prompt="x", max_tokens=2)
            assert not endless.done()  # for `CHECK_S`
            endless.cancel()


class TestEnds:
    @pytest.mark.parametrize(
        ("finish", "status", "code", "outcome"),
        [
            (Finish.EMPTY, 400, "no_token_allowed", "client_error"),
            (Finish.TOO_COMPLEX, 400, "grammar_too_large", "client_error"),
            (Finish.GRAMMAR, 500, "grammar_failed", "server_error"),
        ],
    )
    async def test_before_and_after_the_first_byte(
        self, finish: Finish, status: int, code: str, outcome: str
    ) -> None:
        async with in_process(FakeEngine(lambda *_: finish)) as site:
            error = await site.refused(status, prompt="x")
            assert error["code"] == code
            reply = await _post(site, prompt="x", stream=True)
            assert (reply.status_code, error_of(reply)["code"]) == (status, code)
            assert site.metric("tailrace_request_outcomes_total", outcome=outcome) == 2
        async with in_process(FakeEngine(says("ab", finish))) as site:
            reply = await _post(site, prompt="x", stream=True)
            assert reply.status_code == 200
            *chunks, last = chunks_of(reply.text)
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ab"
            assert last["error"]["code"] == code
            assert site.metric("tailrace_request_outcomes_total", outcome=outcome) == 1

    async def test_the_matchers_own_words(self) -> None:
        async with in_process(FakeEngine(lambda *_: Finish.GRAMMAR)) as site:
            error = await site.refused(500, prompt="x")
            assert "it broke" in error["message"]


async def _post(site: Site, **body: Any) -> httpx.Response:
    return await site.client.post("/v1/completions", json={"model": MODEL, **body})
