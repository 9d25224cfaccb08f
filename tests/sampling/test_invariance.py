"""Given equal logits a request gets the same tokens whatever happens around it.

Batch size, order, row, neighbours and preemption are varied over 64 requests of all kinds. What is
compared is exact; a mutant is missed only if all its tokens coincide, with odds far below 1e-7.
"""

from collections.abc import Callable, Iterator
from itertools import count

import pytest
import torch
from torch import Tensor

from sampling.noise import NoiseKey
from sampling.params import SamplingParams
from sampling.rows import SamplingRows
from tests.sampling.steps import Host, Request, make_logits

NUM_REQUESTS, NUM_STEPS, WIDTH = 64, 5, 1500
LOGITS = [make_logits(NUM_REQUESTS, WIDTH, seed=position) for position in range(16)]


def requests() -> list[Request]:
    """Requests that are greedy, random, filtered, masked, biased and penalised, in turn."""
    return [
        Request(
            SamplingParams(
                temperature=(1.0, 0.0, 0.6, 1.4)[i % 4],
                top_k=20 if i % 3 == 1 else 0,
                top_p=0.9 if i % 5 == 2 else 1.0,
                min_p=0.01 if i % 6 == 3 else 0.0,
                presence_penalty=1.5 if i % 7 == 3 else 0.0,
                repetition_penalty=1.3 if i % 7 == 5 else 1.0,
                logit_bias={i: 5.0, 1030: 3.0} if i % 8 == 2 else {},
                bad_words=((1030,), (i, 7)) if i % 8 == 6 else (),
                allowed_token_ids=tuple(range(i, 1400)) if i % 9 == 4 else None,
                min_tokens=2 if i % 10 == 5 else 0,
                stop_token_ids=tuple(range(100)),
            ),
            seed=i - 32,
            choice=i % 3,
            tokens=list(range(2 + i % 4)),
        )
        for i in range(NUM_REQUESTS)
    ]


def logits_of(host: Host, rows: list[int], order: dict[int, int]) -> Tensor:
    """The logits of each row's request at its position; `order` maps rows to requests."""
    return torch.stack([LOGITS[len(host.requests[row].tokens)][order[row]] for row in rows])


def outputs(every: list[Request]) -> list[list[int]]:
    return [request.tokens[request.prompt_len :] for request in every]


def together(rows_of: list[int], num_rows: int = NUM_REQUESTS) -> list[list[int]]:
    """Run all in one batch, request i in row `rows_of[i]`, the batch in the order of the rows."""
    host, every = Host(num_rows, WIDTH), requests()
    order = {row: i for i, row in enumerate(rows_of)}
    for row, i in order.items():
        host.admit(row, every[i])
    for _ in range(NUM_STEPS):
        rows = sorted(order)
        host.step(rows, logits_of(host, rows, order))
    return outputs(every)


def alone() -> list[list[int]]:
    """Run one request after the other, in row 0 of one host."""
    host, every = Host(1, WIDTH), requests()
    for i, request in enumerate(every):
        host.admit(0, request)
        for _ in range(NUM_STEPS):
            host.step([0], logits_of(host, [0], {0: i}))
        host.remove(0)
    return outputs(every)


def preempted() -> list[list[int]]:
    """Run all; two thirds are taken out at some step and come back in a row another has had."""
    host, every, order = Host(NUM_REQUESTS, WIDTH), requests(), {}
    for i, request in enumerate(every):
        host.admit(i, request)
        order[i] = i
    waiting: list[int] = []
    for step in range(NUM_STEPS + 3):
        free = sorted(set(range(NUM_REQUESTS)) - set(order))
        for row, i in zip(free, waiting, strict=True):
            host.admit(row, every[i])
            order[row] = i
        waiting = [i for row, i in order.items() if step < 2 and i % 3 == step]
        for row in [row for row, i in order.items() if i in waiting]:
            host.remove(row)
            del order[row]
        waiting.reverse()
        rows = [row for row in order if len(outputs([host.requests[row]])[0]) < NUM_STEPS]
        if rows:
            host.step(rows, logits_of(host, rows, order))
    return outputs(every)


def shuffled() -> list[int]:
    generator = torch.Generator().manual_seed(7)
    return torch.randperm(NUM_REQUESTS + 6, generator=generator)[:NUM_REQUESTS].tolist()


WAYS: dict[str, Callable[[], list[list[int]]]] = {
    "alone": alone,
    "shuffled into other rows": lambda: together(shuffled(), NUM_REQUESTS + 6),
    "preempted and restarted": preempted,
}


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return together(list(range(NUM_REQUESTS)))


@pytest.mark.parametrize("way", WAYS)
def test_the_same_request_gets_the_same_tokens(way: str, expected: list[list[int]]) -> None:
    assert WAYS[way]() == expected


def test_the_requests_differ(expected: list[list[int]]) -> None:
    assert all(len(tokens) == NUM_STEPS for tokens in expected)
    assert len({tuple(tokens) for tokens in expected}) == NUM_REQUESTS


Key = Callable[[SamplingRows, Tensor, Tensor], NoiseKey]


def keyed_by(part: Callable[[Tensor, Tensor, Iterator[int]], dict[str, Tensor]]) -> Key:
    """`SamplingRows.noise_key` with a part of the key replaced."""
    noise_key, calls = SamplingRows.noise_key, count()

    def wrong(self: SamplingRows, rows: Tensor, positions: Tensor) -> NoiseKey:
        return noise_key(self, rows, positions)._replace(**part(rows, positions, calls))

    return wrong


MUTANTS = {
    "row": (keyed_by(lambda rows, at, calls: {"seeds": rows.long()}), {"preempted and restarted"}),
    "place in the batch": (
        keyed_by(lambda rows, at, calls: {"seeds": torch.arange(len(rows))}),
        set(WAYS),
    ),
    "step": (
        keyed_by(lambda rows, at, calls: {"positions": torch.full_like(at, next(calls))}),
        set(WAYS),
    ),
    "choice by row": (
        keyed_by(lambda rows, at, calls: {"choices": rows.long()}),
        {"alone", "shuffled into other rows"},
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_noise_keyed_by_anything_else_is_found(
    mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, ways = MUTANTS[mutant]
    monkeypatch.setattr(SamplingRows, "noise_key", wrong)
    first = together(list(range(NUM_REQUESTS)))
    for way in ways:
        assert WAYS[way]() != first
