"""Decisions of the whole server on the demo model equal transformers' in float64."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from demo import MODEL_FOLDER
from tests.decision_oracle import Body, Oracle, random_body
from tests.serving.process import Server, serve

MODEL = "tailrace-demo"
ROOT = Path(__file__).parent.parent.parent
TOLERANCE = 1e-5
"""Float32 logits of the demo model are about 1e-6 from float64's; a softmax keeps that."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Steps of 256 tokens: long prompts are split."""
    with serve("--max-num-batched-tokens", "256") as server:
        yield server


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(str(MODEL_FOLDER))


def answers_of(body: Body, reply: httpx.Response) -> list[np.ndarray]:
    assert reply.status_code == 200, reply.text
    found = []
    for question, answer in zip(body["questions"], reply.json()["answers"], strict=True):
        assert answer["type"] == question["type"]
        if question["type"] == "predicate":
            found.append(np.array([answer["probability"], 1 - answer["probability"]]))
        else:
            p = np.array([each["probability"] for each in answer["probabilities"]])
            assert abs(p.sum() - 1) < 1e-12
            found.append(p)
    return found


async def post_all(server: Server, bodies: list[Body]) -> list[httpx.Response]:
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
        return list(
            await asyncio.gather(*(client.post("/v1/decisions", json=body) for body in bodies))
        )


def check(server: Server, oracle: Oracle, count: int, seed: int, most: int) -> None:
    """Bodies at once, so that they meet in steps, and again, so that states are found."""
    rng = np.random.default_rng(seed)
    bodies = [random_body(rng, MODEL, most=most) for _ in range(count)]
    replies = asyncio.run(post_all(server, bodies))
    again = asyncio.run(post_all(server, bodies))
    assert any(reply.json()["usage"]["input_tokens_details"]["cached_tokens"] for reply in again)
    for body, *pair in zip(bodies, replies, again, strict=True):
        wanted = oracle.probabilities(body)
        for reply in pair:
            for want, got in zip(wanted, answers_of(body, reply), strict=True):
                np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)


def test_probabilities_equal_transformers(server: Server, oracle: Oracle) -> None:
    check(server, oracle, count=12, seed=1, most=60)


@pytest.mark.slow
def test_probabilities_of_hundreds_equal_transformers(server: Server, oracle: Oracle) -> None:
    check(server, oracle, count=200, seed=2, most=255)


def test_probabilities_after_thoughts_equal_transformers(server: Server, oracle: Oracle) -> None:
    """And the same thoughts come again, since they are drawn by the seed."""
    body = random_body(np.random.default_rng(5), MODEL, most=20)
    body |= {"reasoning": {"budget": 12}, "seed": 3, "diagnostics": True}
    (first, again) = asyncio.run(post_all(server, [body, body]))
    thoughts = [
        [answer["diagnostics"]["orders"][0]["thought"] for answer in reply.json()["answers"]]
        for reply in (first, again)
    ]
    assert thoughts[0] == thoughts[1]
    assert len(set(thoughts[0])) > 1 or len(thoughts[0]) == 1
    for question, thought, got in zip(
        body["questions"], thoughts[0], answers_of(body, first), strict=True
    ):
        wanted = oracle.answer(body["input"], question, body["labels"], thought)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE)
    num_thought = first.json()["usage"]["output_tokens"]
    assert 0 < num_thought <= 12 * len(body["questions"])


@pytest.mark.parametrize(
    ("count", "num_beside"), [(20, 4), pytest.param(200, 20, marks=pytest.mark.slow)]
)
def test_the_same_request_beside_generation(count: int, num_beside: int, server: Server) -> None:
    """Many times beside completions and other decisions: it differs by no more than float32 sums
    in other orders."""
    rng = np.random.default_rng(3)
    body = random_body(rng, MODEL, most=30)
    others = [random_body(rng, MODEL, most=60) for _ in range(num_beside)]

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
            generate: dict[str, Any] = {"prompt": "def main():", "max_tokens": 40, "n": 4}
            beside = [client.post("/v1/completions", json=generate) for _ in range(num_beside)]
            beside += [client.post("/v1/decisions", json=other) for other in others]
            same = [client.post("/v1/decisions", json=body) for _ in range(count)]
            replies = await asyncio.gather(*beside, *same)
            assert all(reply.status_code == 200 for reply in replies)
            return list(replies[len(beside) :])

    replies = [answers_of(body, reply) for reply in asyncio.run(ask())]
    for reply in replies[1:]:
        for first, other in zip(replies[0], reply, strict=True):
            np.testing.assert_allclose(other, first, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_beside_preempted_generation_that_drafts(oracle: Oracle) -> None:
    """Choices are preempted and drafts verified while the questions are read."""
    drafts = '{"method": "ngram", "num_speculative_tokens": 3}'
    flags = ["--max-num-batched-tokens", "128", "--max-num-seqs", "12", "--max-model-len", "1024"]
    flags += ["--num-gpu-blocks-override", "70", "--speculative-config", drafts]
    rng = np.random.default_rng(4)
    bodies = [random_body(rng, MODEL, most=20) for _ in range(10)]
    generate: dict[str, Any] = {"prompt": "def f(x):\n    x = ", "max_tokens": 250, "n": 4}

    async def ask(server: Server) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=500) as client:
            written = [
                client.post("/v1/completions", json={**generate, "seed": i, "ignore_eos": True})
                for i in range(3)
            ]
            asked = [client.post("/v1/decisions", json=body) for body in bodies]
            replies = await asyncio.gather(*written, *asked)
            assert all(reply.status_code == 200 for reply in replies[:3])
            return list(replies[3:])

    with serve(*flags) as server:
        replies = asyncio.run(ask(server))
        counts = server.metrics()
    assert sum(v for name, v in counts.items() if "preemptions" in name) > 0
    assert sum(v for name, v in counts.items() if "accepted" in name) > 0
    for body, reply in zip(bodies, replies, strict=True):
        for want, got in zip(oracle.probabilities(body), answers_of(body, reply), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)


def peaks_while(server: Server, bodies: list[Body]) -> tuple[list[httpx.Response], list[int]]:
    """Replies, and the most private bytes of the engine and of the front meanwhile."""
    processes = [server.engine, psutil.Process(server.process.pid)]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(asyncio.run, post_all(server, bodies))
        peaks = [0, 0]
        while not asked.done():
            sizes = [process.memory_full_info().uss for process in processes]
            peaks = [max(pair) for pair in zip(peaks, sizes, strict=True)]
            time.sleep(0.05)
    return asked.result(), peaks


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_largest_request_in_flat_memory() -> None:
    """400 questions of 255 options about a state of a quarter of the context, which is the most
    that a request may hold, next to a tenth of them."""
    numbers = np.random.default_rng(6).integers(0, 1000, 230)
    choices = [{"value": str(index)} for index in range(255)]
    questions = [
        {"type": "choice", "instructions": f"Which is number {index}?", "choices": choices}
        for index in range(400)
    ]
    body: Body = {"model": MODEL, "input": " ".join(map(str, numbers)), "questions": questions}
    few = {**body, "questions": questions[:40]}
    # A cache that the first request touches whole: what grows later is the request's own.
    with serve("--num-gpu-blocks-override", "400") as server:
        (first,), before = peaks_while(server, [few])
        (reply,), after = peaks_while(server, [body])
    answers = answers_of(body, reply)
    assert [len(p) for p in answers] == [255] * 400
    for few_p, p in zip(answers_of(few, first), answers, strict=False):
        np.testing.assert_allclose(p, few_p, rtol=0, atol=1e-6)
    # In the engine, a row of logits kept for each label would be 2.9 GiB, a hidden state 90 MiB.
    engine, front = (late - early for early, late in zip(before, after, strict=True))
    print(f"the engine grew by {engine} and the front by {front} bytes from {before}")
    assert engine < 32 << 20
    # The front holds texts, numbers and the reply of each label: some 900 bytes.
    assert front < 360 * 255 * 2048


EXAMPLES: dict[str, Body] = {
    "as it is": {},
    '`labels: "options"`': {"labels": "options"},
    "`permute: 6, seed: 1`": {"permute": 6, "seed": 1},
    '`prior: "content_free"`': {"prior": "content_free"},
}


def test_the_examples_of_the_documents(server: Server) -> None:
    state = "I was charged twice for order 4711 and nobody answers my mails."
    teams = {
        "billing": "payments and refunds",
        "support": "something does not work",
        "sales": "wants to buy",
    }
    questions: list[Body] = [
        {"type": "predicate", "instructions": "The customer is angry."},
        {
            "type": "choice",
            "instructions": "Which team should answer?",
            "choices": [{"value": name, "description": text} for name, text in teams.items()],
        },
        {
            "type": "score",
            "instructions": "How urgent is it?",
            "levels": [{"label": label} for label in ("can wait", "this week", "today")],
        },
    ]
    page = (ROOT / "docs" / "decisions.md").read_text()
    for name, changes in EXAMPLES.items():
        body = {"model": MODEL, "input": state, "questions": questions, **changes}
        (reply,) = asyncio.run(post_all(server, [body]))
        angry, *others = answers_of(body, reply)
        row = page.split(f"\n| {name} |")[1].split("\n")[0]
        shown = [float(number) for number in re.findall(r"[01]\.\d{3}", row)]
        got = np.concatenate([angry[:1], *others])
        np.testing.assert_allclose(got, shown, rtol=0, atol=0.0006)  # rounded to three digits
