"""The whole server on the demo model, through the real openai package."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import torch
from openai import AsyncOpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo import MODEL_FOLDER
from tests.serving.process import Server, refused, serve

PROMPT = "def fibonacci(n):\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve() as server:
        yield server


def test_greedy_text_is_that_of_transformers(server: Server) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
    model = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.float32)
    ids = tokenizer(PROMPT, return_tensors="pt")
    want = model.generate(**ids, max_new_tokens=40, do_sample=False)[0, ids.input_ids.shape[1] :]
    reply = server.client.completions.create(
        model=server.client.models.list().data[0].id, prompt=PROMPT, max_tokens=40, temperature=0
    )
    assert reply.choices[0].text == tokenizer.decode(want, skip_special_tokens=True)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == ids.input_ids.shape[1]


def test_streams_and_async_give_the_same(server: Server) -> None:
    model = server.client.models.list().data[0].id
    fields: dict[str, Any] = {"model": model, "prompt": PROMPT, "max_tokens": 32, "seed": 5, "n": 2}
    whole = server.client.completions.create(**fields)
    joined = {0: "", 1: ""}
    for chunk in server.client.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            joined[choice.index] += choice.text

    async def ask() -> openai.types.Completion:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            reply: openai.types.Completion = await client.completions.create(**fields)
            return reply

    again = asyncio.run(ask())
    texts = [choice.text for choice in whole.choices]
    assert texts == [joined[0], joined[1]]
    assert texts == [choice.text for choice in again.choices]
    assert texts[0] != texts[1], "choices of one request draw from different noise"


def test_a_seed_gives_its_tokens_alone_and_in_company(server: Server) -> None:
    model = server.client.models.list().data[0].id

    async def ask(count: int) -> list[str]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            replies = await asyncio.gather(
                *(
                    client.completions.create(
                        model=model, prompt=PROMPT, max_tokens=24, seed=100 + i, top_p=0.9
                    )
                    for i in range(count)
                )
            )
        return [reply.choices[0].text for reply in replies]

    alone, together = asyncio.run(ask(1)), asyncio.run(ask(24))
    assert together[0] == alone[0]
    assert len(set(together)) > 12


def test_logprobs_of_output_and_prompt_agree_with_transformers(server: Server) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
    model = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.float32)
    reply = server.client.completions.create(
        model=server.client.models.list().data[0].id,
        prompt=PROMPT,
        max_tokens=6,
        seed=1,
        logprobs=3,
        echo=True,
        extra_body={"return_token_ids": True},
    )
    choice = reply.choices[0]
    prompt_ids = tokenizer(PROMPT).input_ids
    extra = choice.model_extra or {}
    ids = torch.tensor([prompt_ids + extra["token_ids"]])
    with torch.inference_mode():
        table = torch.log_softmax(model(ids).logits[0].double(), dim=-1)
    want = table[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    values: list[float | None] = [*choice.logprobs.token_logprobs]
    assert values[0] is None
    assert values[1:] == pytest.approx(want, abs=1e-4)


def test_errors_map_to_exception_classes(server: Server) -> None:
    client = server.client
    model = client.models.list().data[0].id
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model=model, prompt="x", temperature=-1)
    with pytest.raises(openai.BadRequestError, match="2048"):
        client.completions.create(model=model, prompt=[5] * 3000)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="nobody", prompt="x")


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [8192]},
        {"prompt": ""},
        {"prompt": "x", "no_such_field": 1},
        {"prompt": "x", "top_p": 0},
        {"prompt": "x", "top_k": -5},
        {"prompt": "x", "allowed_token_ids": []},
        {"prompt": "x", "logit_bias": {"9000": 1}},
        {"prompt": "x", "seed": 2**64},
        {"prompt": "x", "max_tokens": -1},
        {"prompt": "x", "suffix": "y"},
    ],
)
def test_bad_requests_name_the_field(server: Server, body: dict[str, object]) -> None:
    model = server.client.models.list().data[0].id
    reply = httpx.post(f"{server.url}/v1/completions", json={"model": model, **body}, timeout=30)
    assert reply.status_code == 400, reply.text
    field = next(name for name in reversed(list(body)))
    assert field in (reply.json()["error"]["param"] or ""), reply.text


def test_a_lone_surrogate_is_the_clients_fault(server: Server) -> None:
    raw = json.dumps({"model": "x", "prompt": "\ud800"})  # ASCII, or httpx would refuse it
    reply = httpx.post(f"{server.url}/v1/completions", content=raw, timeout=30)
    assert reply.status_code == 400
    assert "surrogate" in reply.json()["error"]["message"]


async def until_running(http: httpx.AsyncClient, server: Server) -> None:
    """Wait until the engine has begun with a request."""
    begun = re.compile(r"^tailrace_num_requests_running{.*} [1-9]", re.MULTILINE)
    for _ in range(3000):
        if begun.search((await http.get(f"{server.url}/metrics")).text):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("never running")


def test_killed_engine() -> None:
    with serve() as server:
        model = server.client.models.list().data[0].id
        url = f"{server.url}/v1/completions"
        body = {"model": model, "prompt": "x", "max_tokens": 1500, "ignore_eos": True}

        async def wait_and_kill() -> httpx.Response:
            async with httpx.AsyncClient(timeout=60) as http:
                waiting = asyncio.create_task(http.post(url, json=body))
                await until_running(http, server)
                server.engine.kill()
                reply = await waiting
                assert (await http.get(f"{server.url}/health")).status_code == 503
                return reply

        reply = asyncio.run(wait_and_kill())
        assert reply.status_code == 500
        message = reply.json()["error"]["message"]
        assert "signal 9" in message, "silence alone is noticed later"
        assert server.process.wait(timeout=60) != 0, (
            "the server leaves restarting to its supervisor"
        )


def test_killed_server_takes_its_engine_along() -> None:
    with serve() as server:
        engine = server.engine
        server.process.send_signal(signal.SIGKILL)
        engine.wait(timeout=60)
        assert not engine.is_running()


def test_sigterm_drains_and_exits_zero() -> None:
    with serve("--shutdown-timeout", "30") as server:
        model = server.client.models.list().data[0].id
        body = {"model": model, "prompt": "x", "max_tokens": 200, "ignore_eos": True}

        async def drain() -> httpx.Response:
            async with httpx.AsyncClient(timeout=60) as http:
                waiting = asyncio.create_task(http.post(f"{server.url}/v1/completions", json=body))
                await until_running(http, server)
                server.process.send_signal(signal.SIGTERM)
                return await waiting

        reply = asyncio.run(drain())
        assert reply.status_code == 200
        assert reply.json()["usage"]["completion_tokens"] == 200
        assert server.process.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/nonexistent/model"], ["/nonexistent/model"]),
        (["--max-num-seqs", "0"], ["max-num-seqs", "0"]),
        (["--no-such-flag"], ["no-such-flag"]),
        (["--dtype", "int3"], ["dtype", "int3"]),
        (["--speculative-config", '{"method": "eagle"}'], ["speculative-config"]),
    ],
)
def test_startup_errors_are_one_line(arguments: list[str], words: list[str]) -> None:
    status, stderr = refused(*arguments)
    assert status != 0
    assert "Traceback" not in stderr
    last = stderr.strip().splitlines()[-1]
    assert all(word in last for word in words), stderr


def test_an_occupied_port_is_one_line(server: Server) -> None:
    port = server.url.rsplit(":", 1)[1]
    status, stderr = refused("--port", port)
    assert status != 0
    assert "Traceback" not in stderr
    assert port in stderr.strip().splitlines()[-1]
