"""Bodies: bounded, JSON only, and never long on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import httpx
import numpy as np
import orjson
import pytest

from engine.request import Finish, StepOutput
from engine.submission import entries_of
from server.completions.generation import Generation
from server.completions.logprob_arrays import join
from server.completions.prepare import make_job
from server.http.body import INLINE_BYTES
from server.metrics import NO_STATS
from server.schema.base import decode
from server.schema.completions import CompletionRequest
from tests.fakes import FakeEngine, score, value_row
from tests.server.conftest import Site, error_of, in_process, on_a_port

JSON = {"content-type": "application/json"}
LIMIT_S = 0.05


async def longest_wait(action: Callable[[], Awaitable[httpx.Response]]) -> float:
    """Seconds that a heartbeat on the event loop waited at most while `action` ran.

    The best of some attempts: what else a busy machine does is not ours, and what is ours is
    there each time.
    """

    async def beat(waits: list[float]) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            waits.append(time.perf_counter() - began)

    best = float("inf")
    for _ in range(5):
        waits: list[float] = []
        task = asyncio.create_task(beat(waits))
        await action()
        task.cancel()
        best = min(best, max(waits))
        if best < LIMIT_S:
            break
    return best


async def test_over_the_limit_is_413() -> None:
    async with on_a_port(max_body_bytes=5000) as site:
        reply = await site.client.post("/v1/completions", content=b"x" * 5001, headers=JSON)
        assert reply.status_code == 413
        error = error_of(reply)
        assert "at most 5000 bytes (--max-body-bytes), got 5001" in error["message"]

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 1000

        reply = await site.client.post("/v1/completions", content=chunks(), headers=JSON)
        assert reply.status_code == 413
        assert (await site.complete(prompt="a"))["choices"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
async def test_other_content_is_415(site: Site, kind: str) -> None:
    reply = await site.client.post(
        "/v1/completions", content=b'{"prompt": "a"}', headers={"content-type": kind}
    )
    assert reply.status_code == 415
    assert kind in error_of(reply)["message"]


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.x+json"])
async def test_json_by_another_name(site: Site, kind: str) -> None:
    reply = await site.client.post(
        "/v1/completions", content=b'{"prompt": "a"}', headers={"content-type": kind}
    )
    assert reply.status_code == 200


async def test_thirty_megabytes_do_not_hold_up_the_event_loop() -> None:
    """Answered with the field and the numbers, while a heartbeat goes on."""
    text = orjson.dumps({"prompt": "word " * 5_500_000})
    ids = orjson.dumps({"prompt": [12] * 9_000_000})
    broken = b'{"prompt": [' + b"1," * 14_000_000
    async with on_a_port() as site:
        await site.client.post(
            "/v1/completions", content=b" " * INLINE_BYTES + b"{}", headers=JSON
        )  # starts the other process
        for body, param, words in (
            (text, "prompt", "at least"),
            (ids, "prompt", "got 9000000 tokens"),
            (broken, None, "not valid JSON"),
        ):
            post = partial(site.client.post, "/v1/completions", content=body, headers=JSON)
            assert await longest_wait(post) < LIMIT_S
            reply = await post()
            assert reply.status_code == 400
            error = error_of(reply)
            assert error["param"] == param
            assert words in error["message"]


async def test_a_big_body_that_is_fine_is_served() -> None:
    """Ids and texts come back from the other process as they were."""
    engine = FakeEngine(max_model_len=400_000)
    async with in_process(engine) as site:
        ids = [i % 250 for i in range(300_000)]
        assert len(orjson.dumps(ids)) > INLINE_BYTES
        await site.complete(prompt=ids, max_tokens=1, stop=["zz"], logit_bias={"5": 1.5})
        request = engine.requests[-1]
        assert (request.prompt_token_ids == np.array(ids)).all()
        assert request.params.logit_bias == {5: 1.5}
        await site.complete(prompt="é" * 150_000, max_tokens=1)
        assert engine.requests[-1].prompt_token_ids.tolist() == list("é".encode()) * 150_000
        error = await site.refused(prompt=ids, temperature=-1)
        assert error["param"] == "temperature"


async def test_big_replies_are_rendered_off_the_event_loop() -> None:
    """50,000 values; the engine's own work is not in the window."""
    async with in_process(FakeEngine(max_model_len=5000), max_logprobs=50) as site:
        wire = decode(CompletionRequest, b'{"prompt": "ab", "max_tokens": 1000, "logprobs": 50}')
        context = site.context
        info, tokenizer = context.engine.info, context.tokenizer
        job = await make_job(wire, config=context.config, info=info, tokenizer=tokenizer)

        async def reply() -> httpx.Response:
            generation = Generation(
                job,
                engine=context.engine,
                tokenizer=tokenizer,
                admission=context.admission,
                metrics=context.metrics,
            )
            choice = generation.choices[0]
            scores = score(value_row(0), 97, 50, ())
            output = StepOutput(
                handles=np.array([1]),
                choices=np.array([0], dtype=np.int32),
                num_new=np.array([1000], dtype=np.int32),
                finish=np.array([Finish.LENGTH], dtype=np.uint8),
                num_cached=np.array([0], dtype=np.int32),
                token_ids=np.full(1000, 97, dtype=np.int32),
                logprobs=join([scores] * 1000),
                stats=NO_STATS,
            )
            choice.feed(*entries_of(output))
            assert generation.renderer.is_big([choice])
            raw = await context.worker.run(generation.renderer.reply, [choice], {}, None)
            return httpx.Response(200, content=raw)

        assert await longest_wait(reply) < LIMIT_S
        assert len((await reply()).json()["choices"][0]["logprobs"]["tokens"]) == 1000


async def test_long_texts_are_tokenised_off_the_event_loop() -> None:
    async with on_a_port(FakeEngine(max_model_len=100_000)) as site:
        post = partial(site.client.post, "/tokenize", json={"prompt": "word " * 30_000})
        assert await longest_wait(post) < LIMIT_S
        tokens = (await post()).json()["tokens"]
        assert len(tokens) == 150_000
        post = partial(site.client.post, "/detokenize", json={"tokens": tokens})
        assert await longest_wait(post) < LIMIT_S
        assert (await post()).json()["prompt"] == "word " * 30_000
