"""Scores of the whole server on the demo model equal a plain transformers computation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from demo import MODEL_FOLDER
from tests.serving.process import Server, serve

NUM_CASES = 200
TOLERANCE = 1e-4
"""Float32 forwards of one model summed in other orders: the logits agree to about 1e-5."""


@dataclass(frozen=True)
class Case:
    """One item with its labels, and what transformers says of it."""

    query: list[int]
    item: list[int]
    labels: list[list[int]]
    item_first: bool
    logprobs: np.ndarray  # float64 [labels]


@pytest.fixture(scope="module", params=[(), ("--no-enable-prefix-caching",)], ids=["cache", "none"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serve("--max-num-batched-tokens", "512", *request.param) as server:
        yield server


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Queries of one and of several blocks, shared by few or many; labels of 1 to 3 tokens."""
    rng = np.random.default_rng(5)
    model = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.float32).eval()

    def ids(low: int, high: int) -> list[int]:
        return [int(token) for token in rng.integers(10, 8000, rng.integers(low, high + 1))]

    made: list[Case] = []
    while len(made) < NUM_CASES:
        query, item_first = ids(1, 70), bool(rng.random() < 0.2)
        labels = [[token] for token in ids(1, 4)] if rng.random() < 0.6 else _long_labels(rng)
        for _ in range(int(rng.choice([1, 3, 10]))):
            item = ids(1, 40)
            prompt = item + query if item_first else query + item
            logprobs = np.array([_logprob(model, prompt, label) for label in labels])
            made.append(Case(query, item, labels, item_first, logprobs))
    return made[:NUM_CASES]


def _long_labels(rng: np.random.Generator) -> list[list[int]]:
    first, second = (int(t) for t in rng.choice(8000, 2, replace=False))
    return [[first, 11], [first, 12, 13], [second]]


def _logprob(model: Any, prompt: list[int], label: list[int]) -> float:
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + label[:-1]])).logits[0, len(prompt) - 1 :]
        table = logits.double().log_softmax(-1)
        return float(table.gather(1, torch.tensor(label)[:, None]).sum())


def _body(cases: list[Case]) -> dict[str, Any]:
    first = cases[0]
    labels = [label[0] if len(label) == 1 else label for label in first.labels]
    shared = {"query": first.query, "label_token_ids": labels, "item_first": first.item_first}
    return {**shared, "items": [case.item for case in cases]}


def _groups(cases: list[Case]) -> list[list[Case]]:
    """Cases of one query, which can be asked together."""
    groups: dict[int, list[Case]] = {}
    for case in cases:
        groups.setdefault(id(case.query), []).append(case)
    return list(groups.values())


def _ask(server: Server, path: str, groups: list[list[Case]]) -> list[Any]:
    """All at once, so that requests meet in steps."""

    async def ask() -> list[Any]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            replies = await asyncio.gather(
                *(client.post(path, json=_body(group)) for group in groups)
            )
        assert all(reply.status_code == 200 for reply in replies), replies
        return [reply.json() for reply in replies]

    return asyncio.run(ask())


@pytest.mark.parametrize("together", [True, False])
def test_score(server: Server, cases: list[Case], together: bool) -> None:
    groups = _groups(cases) if together else [[case] for case in cases]
    for group, reply in zip(groups, _ask(server, "/v1/score", groups), strict=True):
        for i, case in enumerate(group):
            np.testing.assert_allclose(
                reply["label_logprobs"][i], case.logprobs, rtol=0, atol=TOLERANCE
            )
            np.testing.assert_allclose(reply["scores"][i], np.exp(case.logprobs), rtol=5e-4)
            rest = -np.expm1(np.logaddexp.reduce(case.logprobs))
            assert np.exp(reply["other_logprob"][i]) == pytest.approx(rest, abs=TOLERANCE)
        assert reply["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("together", [True, False])
def test_generative_scoring(server: Server, cases: list[Case], together: bool) -> None:
    groups = _groups(cases) if together else [[case] for case in cases]
    for group, reply in zip(groups, _ask(server, "/generative_scoring", groups), strict=True):
        for case, scored in zip(group, reply["data"], strict=True):
            weights = np.exp(case.logprobs - case.logprobs.max())
            assert scored["score"] == pytest.approx(weights[0] / weights.sum(), abs=TOLERANCE)
            np.testing.assert_allclose(
                scored["label_logprobs"], case.logprobs, rtol=0, atol=TOLERANCE
            )


def test_alone_and_together_are_the_same_numbers(server: Server, cases: list[Case]) -> None:
    """Not merely near: what a row reads does not depend on who shares its step, up to sums."""
    group = max(_groups(cases), key=len)
    together = _ask(server, "/v1/score", [group])[0]["label_logprobs"]
    alone = [
        reply["label_logprobs"][0] for reply in _ask(server, "/v1/score", [[c] for c in group])
    ]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)


def test_nothing_is_generated_and_neighbours_are_unharmed(
    server: Server, cases: list[Case]
) -> None:
    """Bad requests beside good ones and beside a completion."""
    group = _groups(cases)[0]
    bad: list[dict[str, Any]] = [
        {"items": [[5] * 3000]},
        {"label_token_ids": [8192]},
        {"label_token_ids": [-1]},
        {"items": []},
        {"label_token_ids": [[1, 2], 1]},
    ]

    async def ask() -> tuple[list[httpx.Response], httpx.Response, httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            refused = [client.post("/v1/score", json=_body(group) | each) for each in bad]
            good = client.post("/v1/score", json=_body(group))
            body = {"prompt": group[0].query, "max_tokens": 20, "temperature": 0}
            completion = client.post("/v1/completions", json=body)
            answers = await asyncio.gather(*refused, good, completion)
            return answers[:-2], answers[-2], answers[-1]

    before = server.metrics()["tailrace_generation_tokens_total" + _LABELS]
    refused, good, completion = asyncio.run(ask())
    assert {reply.status_code for reply in refused} == {400}
    np.testing.assert_allclose(
        good.json()["label_logprobs"], [case.logprobs for case in group], rtol=0, atol=TOLERANCE
    )
    assert completion.status_code == 200
    generated = server.metrics()["tailrace_generation_tokens_total" + _LABELS] - before
    assert generated == completion.json()["usage"]["completion_tokens"]


_LABELS = '{engine="0",model_name="tailrace-demo"}'


def test_a_shared_query_is_cached(server: Server) -> None:
    body = {"query": list(range(100, 164)), "items": [[7], [8]], "label_token_ids": [5]}
    for _ in range(2):
        reply = httpx.post(f"{server.url}/v1/score", json=body, timeout=60).json()
    cached = "no-enable-prefix-caching" not in " ".join(server.process.args)  # type: ignore[arg-type]
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == (64 if cached else 0)
