"""A joined stream equals the plain reply, field by field; and the shape of its events."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.generation.render import AHEAD_TOKENS, Renderer
from tests.fakes import EOS, FakeEngine, Script
from tests.server.conftest import Site, chunks_of, in_process
from tests.server.written_ahead import note_written_ahead

LOGPROB_COLUMNS = (
    "tokens",
    "token_logprobs",
    "top_logprobs",
    "text_offset",
    "ranks",
    "token_ids",
    "top_token_ids",
    "bytes",
)


def joined(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices that a stream's chunks make up, with the nulls that only whole replies have."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        (part,) = chunk["choices"]
        whole = choices.setdefault(part["index"], part)
        if whole is part:
            continue
        assert whole["finish_reason"] is None, "a chunk after the last"
        assert not {"prompt_token_ids", "prompt_logprobs", "prompt_logprob_token_ids"} & set(part)
        whole["text"] += part["text"]
        whole["finish_reason"], whole["stop_reason"] = part["finish_reason"], part["stop_reason"]
        if whole["logprobs"] is not None:
            for column in LOGPROB_COLUMNS:
                whole["logprobs"][column] += part["logprobs"][column]
        if "logprob_token_ids" in whole:
            whole["logprob_token_ids"]["logprobs"] += part["logprob_token_ids"]["logprobs"]
        for name in ("token_ids", "token_origins"):
            if name in whole:
                whole[name] += part[name]
    nulls = dict.fromkeys(Renderer.null_fields)
    return [nulls | choices[index] for index in sorted(choices)]


async def check_equal(site: Site, body: dict[str, Any]) -> None:
    """The same request, plain and streamed."""
    plain = await site.complete(**body)
    options = {"stream_options": {"include_usage": True}}
    *chunks, last = await site.stream(**body, **options)
    assert joined(chunks) == plain["choices"]
    assert last["choices"] == []
    assert last["usage"] == plain["usage"]


def writes(tokens: list[int]) -> Script:
    """Each choice writes these ids, rotated by its index."""
    return lambda request, choice, position: tokens[(position + choice) % len(tokens)]


odd_tokens = st.sampled_from([99, 0x20, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xFF, EOS, 258, 260])
tokens = st.lists(st.sampled_from([97, 98]) | odd_tokens, min_size=1, max_size=12)
stops = st.text("ab", min_size=2, max_size=3) | st.text("abc é€", min_size=1, max_size=3)
bodies = st.fixed_dictionaries(
    {
        "prompt": st.sampled_from(["ab", "né", ["a", "bcd"], [97, 0xC3], [[98], [EOS, 99, 100]]]),
        "max_tokens": st.integers(0, 12),
    },
    optional={
        "n": st.integers(1, 3),
        "echo": st.booleans(),
        "logprobs": st.integers(0, 3),
        "logprob_token_ids": st.lists(st.integers(0, 263), min_size=1, max_size=3),
        "prompt_logprobs": st.integers(0, 2),
        "prompt_logprob_token_ids": st.lists(st.integers(0, 263), min_size=1, max_size=2),
        "stop": st.lists(stops, min_size=1, max_size=3),
        "include_stop_str_in_output": st.booleans(),
        "stop_token_ids": st.just([99]),
        "min_tokens": st.integers(0, 3),
        "ignore_eos": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "return_token_ids": st.booleans(),
        "return_token_origin": st.booleans(),
        "return_tokens_as_token_ids": st.booleans(),
        "stream_interval": st.integers(1, 5),
    },
)


@settings(
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(bodies, tokens)
async def test_a_joined_stream_equals_the_plain_reply(
    body: dict[str, Any], tokens: list[int]
) -> None:
    body["min_tokens"] = min(body.get("min_tokens", 0), body["max_tokens"])
    async with in_process(FakeEngine(writes(tokens))) as site:
        site.engine.speculates = True
        await check_equal(site, body)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"echo": True, "logprob_token_ids": [98, 5], "return_token_ids": True},
        {"n": 2, "stop": ["ab!"], "return_tokens_as_token_ids": True},
    ],
)
async def test_logprobs_written_ahead_join_the_rest(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = note_written_ahead(monkeypatch, Renderer)
    tokens = [97, 0xC3, 0xA9, 98, 258, 0xFF] * 35 + [97, 98, 33]
    async with in_process(FakeEngine(writes(tokens))) as site:
        await check_equal(site, {"prompt": "ab", "max_tokens": 240, "logprobs": 2, **options})
    assert len(ahead) >= 2


@pytest.mark.parametrize("over", [-1, 0, 1, AHEAD_TOKENS])
async def test_a_reply_may_end_at_a_part(site: Site, over: int) -> None:
    body = {"prompt": "hello", "max_tokens": AHEAD_TOKENS + over, "logprobs": 2}
    await check_equal(site, body)


@pytest.mark.parametrize("include", [False, True])
async def test_tokens_wait_with_the_text_that_is_held_back(site: Site, include: bool) -> None:
    """Else those of a stop string would be out before it is found."""
    body = {"prompt": "abcabd", "stop": "abd", "return_token_ids": True, "logprobs": 1}
    await check_equal(site, body | {"include_stop_str_in_output": include})


async def test_one_choice_a_chunk_and_the_same_head_on_each(site: Site) -> None:
    chunks = await site.stream(prompt=["ab", "cd"], n=2, max_tokens=3)
    heads = {(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks}
    assert len(heads) == 1
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    assert {chunk["choices"][0]["index"] for chunk in chunks} == {0, 1, 2, 3}
    assert "usage" not in chunks[0]


async def test_headers(site: Site) -> None:
    reply = await site.client.post("/v1/completions", json={"prompt": "a", "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"


async def test_usage_options(site: Site) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await site.stream(prompt="ab", max_tokens=2, stream_options=options)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 2]
    chunks = await site.stream(prompt="ab", max_tokens=2, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None, None]


async def test_usage_can_be_forced() -> None:
    async with in_process(force_include_usage=True) as site:
        chunks = await site.stream(prompt="ab", max_tokens=2)
    assert chunks[-1]["usage"]["completion_tokens"] == 2


async def test_echo_comes_with_the_first_chunk(site: Site) -> None:
    chunks = await site.stream(prompt="ab", max_tokens=2, echo=True)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["aba", "b"]


async def test_no_empty_chunks(site: Site) -> None:
    """Bytes of an unfinished character and held-back text are not worth a chunk."""
    async with in_process(FakeEngine(writes([0xE2, 0x82, 0xAC]))) as site:
        chunks = await site.stream(prompt="x", max_tokens=6)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["€", "€"]


async def test_text_that_may_begin_a_stop_string_is_held_back(site: Site) -> None:
    chunks = await site.stream(prompt="abc", max_tokens=7, stop="ca!")
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(texts) == "abcabca"
    assert "c" not in texts


@pytest.mark.parametrize("interval", [1, 3])
async def test_interval(interval: int) -> None:
    async with in_process(stream_interval=interval) as site:
        chunks = await site.stream(prompt="ab", max_tokens=6)
    assert len(chunks) == 6 // interval


async def test_what_has_arrived_goes_out_as_one_chunk_a_choice() -> None:
    """A client that reads slowly gets fewer, longer chunks."""
    sent: list[bytes] = []

    async def receive() -> dict[str, Any]:
        if not sent:
            sent.append(b"")
            body = b'{"prompt": "abcdef", "max_tokens": 200, "stream": true}'
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.sleep(60)
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        for _ in range(20):  # turns of the loop, in each of which the engine makes a token
            await asyncio.sleep(0)
        sent.append(message.get("body", b""))

    async with in_process() as site:
        await site.call("/v1/completions", receive, send)
    chunks = chunks_of(b"".join(sent).decode())
    assert len(chunks) < 20
    assert joined(chunks)[0]["text"] == ("abcdef" * 40)[:200]
