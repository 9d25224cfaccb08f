"""The real `openai` package: sync, async, streams, and errors as its exception classes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest
from openai.types import Completion

from engine.messages.step_output import Finish
from tests.fakes import FakeEngine, says
from tests.server.conftest import Site, eventually, on_a_port

KEY = "secret"


@pytest.fixture
async def live() -> AsyncIterator[Site]:
    async with on_a_port(api_keys=(KEY,)) as site:
        yield site


@pytest.fixture
async def chatting() -> AsyncIterator[Site]:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    engine = FakeEngine(says("hi there"))
    async with on_a_port(engine, api_keys=(KEY,), chat_template=template) as site:
        yield site


def client_of(site: Site, key: str = KEY) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key=key, max_retries=0)


async def test_a_completion(live: Site) -> None:
    async with client_of(live) as client:
        reply = await client.completions.create(
            model="fake", prompt="hello", max_tokens=7, logprobs=2, echo=True
        )
    choice = reply.choices[0]
    assert choice.text == "hellohellohe"
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert choice.logprobs.text_offset == list(range(12))
    assert reply.usage is not None
    assert reply.usage.total_tokens == 12


async def test_a_stream(live: Site) -> None:
    async with client_of(live) as client:
        stream = await client.completions.create(
            model="fake",
            prompt="hello",
            max_tokens=7,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"min_tokens": 2, "return_token_ids": True},
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].text for c in chunks[:-1]) == "hellohe"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 7


async def test_a_chat(chatting: Site) -> None:
    async with client_of(chatting) as client:
        reply = await client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "hello"}],
            logprobs=True,
            top_logprobs=2,
        )
    choice = reply.choices[0]
    assert choice.message.content == "hi there"
    assert choice.message.role == "assistant"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(entry.token for entry in choice.logprobs.content) == "hi there"
    assert {len(entry.top_logprobs) for entry in choice.logprobs.content} == {2}


async def test_a_streamed_chat(chatting: Site) -> None:
    """By the package's own accumulator."""
    async with (
        client_of(chatting) as client,
        client.chat.completions.stream(
            model="fake",
            messages=[{"role": "user", "content": "hello"}],
            stream_options={"include_usage": True},
        ) as stream,
    ):
        async for _ in stream:
            pass
        whole = await stream.get_final_completion()
    assert whole.choices[0].message.content == "hi there"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == len("hi there") + 1


async def test_the_sync_client(live: Site) -> None:
    def use() -> tuple[str, str, list[str]]:
        with openai.OpenAI(base_url=f"{live.url}/v1", api_key=KEY, max_retries=0) as client:
            plain = client.completions.create(model="fake", prompt="ab", max_tokens=3)
            with client.completions.create(
                model="fake", prompt="ab", max_tokens=3, stream=True
            ) as stream:
                streamed = "".join(chunk.choices[0].text for chunk in stream)
            return plain.choices[0].text, streamed, [card.id for card in client.models.list()]

    assert await asyncio.to_thread(use) == ("aba", "aba", ["fake"])


async def test_models(live: Site) -> None:
    async with client_of(live) as client:
        assert (await client.models.retrieve("fake")).id == "fake"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")


async def test_errors_are_exception_classes(live: Site) -> None:
    async with client_of(live) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.completions.create(model="fake", prompt="a", max_tokens=-1)
        assert bad.value.param == "max_tokens"
        assert bad.value.code == "invalid_field"
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="other", prompt="a")
    async with client_of(live, key="wrong") as stranger:
        with pytest.raises(openai.AuthenticationError) as unknown:
            await stranger.completions.create(model="fake", prompt="a")
        assert unknown.value.code == "invalid_api_key"


async def test_a_full_queue_is_a_rate_limit_error() -> None:
    engine = FakeEngine(max_rows=1)
    async with on_a_port(engine, max_waiting_requests=1) as site, client_of(site) as client:
        with pytest.raises(openai.RateLimitError) as full:
            await client.completions.create(model="fake", prompt=["a", "b", "c"])
    assert full.value.response.headers["retry-after"] == "1"


async def test_nan_before_the_first_token_is_an_internal_server_error() -> None:
    async with on_a_port(FakeEngine(lambda *_: Finish.NAN)) as site, client_of(site) as client:
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as broken:
                await client.completions.create(model="fake", prompt="a", stream=stream)
            assert broken.value.code == "nan_logits"


async def test_an_error_in_mid_stream_raises() -> None:
    engine = FakeEngine(lambda _r, _c, position: 97 if position < 3 else Finish.NAN, step_s=0.001)
    texts: list[str] = []

    async def read(stream: openai.AsyncStream[Completion]) -> None:
        async for chunk in stream:
            texts.append(chunk.choices[0].text)

    async with on_a_port(engine) as site, client_of(site) as client:
        stream = await client.completions.create(model="fake", prompt="a", stream=True)
        with pytest.raises(openai.APIError, match="NaN") as broken:
            await read(stream)
    assert "".join(texts) == "aaa"
    assert broken.value.code == "nan_logits"


async def test_closing_a_stream_ends_the_request_at_the_engine() -> None:
    engine = FakeEngine(step_s=0.001)
    async with on_a_port(engine) as site, client_of(site) as client:
        stream = await client.completions.create(
            model="fake", prompt="a", max_tokens=250, stream=True
        )
        async for _ in stream:
            break
        await stream.close()
        await eventually(lambda: engine.idle)
    assert len(engine.aborted) == 1
