"""Masks, biases and bans on the logits, against a plain loop. Nothing here is random in outcome."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling import reference
from sampling.batch import NOTHING_ALLOWED
from sampling.noise import TILE, Purpose
from sampling.params import SamplingParams
from sampling.paths import torch_edits
from tests.sampling.steps import Host, Request, draw, make_logits

INF = float("inf")
WIDTH = 2 * TILE + 100
STOPS, END = (5, TILE, WIDTH - 1), [40, 41, 42]


def banned(params: SamplingParams, tokens: list[int], num_output: int) -> set[int]:
    """The ids that may not come next, by the text of `SamplingParams`."""
    ids = set()
    if params.allowed_token_ids is not None:
        ids |= set(range(WIDTH)) - set(params.allowed_token_ids)
    if num_output < params.min_tokens:
        ids |= set(params.stop_token_ids)
    for word in params.bad_words:
        beginning = list(word[:-1])
        if tokens[len(tokens) - len(beginning) :] == beginning:
            ids.add(word[-1])
    return ids


def expected(x: Tensor, request: Request) -> Tensor:
    """Apply masks and bias, then penalties, to one token after the other in float32."""
    params, tokens, start = request.params, request.tokens, request.prompt_len
    ids, out = banned(params, tokens, len(tokens) - start), []
    one = np.float32
    repetition, presence = one(params.repetition_penalty), one(params.presence_penalty)
    for token, value in enumerate(x.numpy()):
        value = -one(INF) if token in ids else value + one(params.logit_bias.get(token, 0.0))
        if token in tokens:
            value = value / repetition if value > 0 else value * repetition
        count = tokens[start:].count(token)
        value = value - one(params.frequency_penalty) * one(count)
        out.append(value - presence if count else value)
    return torch.tensor(np.array(out, dtype=np.float32))


def processed(requests: Sequence[Request], logits: Tensor) -> Tensor:
    host = Host(len(requests), WIDTH)
    for row, request in enumerate(requests):
        host.admit(row, request)
    host.rows.flush()
    return torch_edits.process(logits, host.batch(range(len(requests))), host.rows)


def every_kind() -> list[Request]:
    """Requests with each kind of edit, alone and together, four of each, of three tokens."""
    several: dict[str, Any] = {
        "bad_words": ((7,), (41, 42, 9), (42, 9), (1, 42, 8), (0, 1, 2, 3, 40, 41, 42, 10))
    }
    bias: dict[str, Any] = {"logit_bias": {0: 4.5, 5: -100.0, TILE: 0.3, WIDTH - 1: 100.0, 41: 3.0}}
    penalties: dict[str, Any] = {
        "repetition_penalty": 1.7,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.6,
    }
    kinds: list[dict[str, Any]] = [
        {},
        several,
        bias,
        penalties,
        {"allowed_token_ids": (0, 31, 32, TILE, WIDTH - 1)},
        {"min_tokens": 2, "stop_token_ids": STOPS},
        bias | penalties,
        several | bias | penalties | {"min_tokens": 3, "stop_token_ids": STOPS},
        several | bias | {"allowed_token_ids": tuple(range(3, 60))},
    ]
    return [Request(SamplingParams(**kind), tokens=[41, 42, 2]) for kind in kinds for _ in range(4)]


def grown() -> list[Request]:
    """The requests of `every_kind` after 0, 1, 2 and 3 tokens of output."""
    requests = every_kind()
    for i, request in enumerate(requests):
        request.tokens += END[: i % 4]
    return requests


def equal(requests: list[Request], logits: Tensor) -> bool:
    values = processed(requests, logits)
    return all(
        torch.equal(value, expected(x, request))
        for value, x, request in zip(values, logits, requests, strict=True)
    )


def test_processing_equals_a_plain_loop() -> None:
    requests = grown()
    logits = make_logits(len(requests), WIDTH)
    before = logits.clone()
    assert equal(requests, logits)
    assert torch.equal(logits, before)
    order = list(reversed(range(len(requests))))
    assert equal([requests[i] for i in order], logits)


def test_edits_left_out_or_late_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = grown()
    logits, edit = make_logits(len(requests), WIDTH), torch_edits._ban
    monkeypatch.setattr(torch_edits, "_ban", lambda *arguments: None)
    assert not equal(requests, logits)
    monkeypatch.setattr(torch_edits, "_ban", lambda x, row, at, *rest: edit(x, row, at + 1, *rest))
    assert not equal(requests, logits)


def greedy(logits: Tensor, tokens: list[int] | None = None, **params: Any) -> list[int]:
    """Draw three tokens after `tokens` greedily, from the same logits each time."""
    request = Request(SamplingParams(temperature=0.0, **params), tokens=tokens or [1, 2, 3])
    host = Host(1, logits.shape[1])
    host.admit(0, request)
    for _ in range(3):
        host.step([0], logits)
    return request.tokens[-3:]


def ranked(*token_ids: int) -> Tensor:
    """Logits whose highest tokens are these, in this order."""
    logits = torch.full((1, WIDTH), -5.0)
    logits[0, list(token_ids)] = torch.arange(len(token_ids), 0, -1).float()
    return logits


def test_stop_tokens_wait_until_min_tokens_are_out() -> None:
    logits = ranked(TILE, 5, 8)
    for min_tokens, tokens in ((0, [TILE] * 3), (1, [8, TILE, TILE]), (3, [8] * 3)):
        assert greedy(logits, min_tokens=min_tokens, stop_token_ids=STOPS) == tokens


def test_bad_words_of_one_token_never_come() -> None:
    logits = ranked(TILE, 5, 8)
    assert greedy(logits, bad_words=((TILE,), (5,))) == [8] * 3
    assert greedy(logits, bad_words=((TILE,),), logit_bias={TILE: 100.0}) == [5] * 3


def test_bad_words_of_several_tokens_never_end() -> None:
    logits = ranked(TILE, 5, 8)
    assert greedy(logits, bad_words=((TILE, TILE),)) == [TILE, 5, TILE]
    assert greedy(logits, bad_words=((TILE, TILE, TILE),)) == [TILE, TILE, 5]
    assert greedy(logits, bad_words=((5, TILE), (TILE, TILE))) == [TILE, 5, 5]
    # A beginning may lie in the prompt, be all of it, pass its end, or be longer than all.
    assert greedy(logits, [9, 2, 3], bad_words=((2, 3, TILE),)) == [5, TILE, TILE]
    assert greedy(logits, [2, 3], bad_words=((2, 3, TILE),)) == [5, TILE, TILE]
    assert greedy(logits, [9, 2, 3], bad_words=((3, TILE, TILE),)) == [TILE, 5, TILE]
    assert greedy(logits, [3], bad_words=((0, 0, 0, 3, TILE),)) == [TILE] * 3


def test_bias_comes_before_penalties() -> None:
    logits = torch.full((1, WIDTH), -9.0)
    logits[0, [1, 8]] = torch.tensor([-1.0, 0.0])
    # 1 is in the prompt: (-1 + 3) / 4 is above 0, while -1 * 4 + 3 would be below.
    assert greedy(logits, logit_bias={1: 3.0}, repetition_penalty=4.0)[0] == 1


def test_greedy_stays_within_the_allowed_ids() -> None:
    logits = ranked(7, TILE, 5, 8)
    assert greedy(logits, allowed_token_ids=(8, 5, 5, WIDTH - 1)) == [5] * 3
    assert greedy(logits, allowed_token_ids=(WIDTH - 1,)) == [WIDTH - 1] * 3


NOTHING_LEFT: list[dict[str, Any]] = [
    {"allowed_token_ids": (5,), "bad_words": ((5,),)},
    {"allowed_token_ids": STOPS, "min_tokens": 1, "stop_token_ids": STOPS},
    {"allowed_token_ids": (5,), "bad_words": ((2, 3, 5),), "top_k": 3},
    {"allowed_token_ids": (5,), "bad_words": ((5,),), "temperature": 0.0},
]


@pytest.mark.parametrize("kind", NOTHING_LEFT)
def test_a_row_with_every_token_masked_is_bad_alone(kind: dict[str, Any]) -> None:
    logits, others = make_logits(5, WIDTH), [Request(SamplingParams(), seed=i) for i in range(5)]
    clean = draw(others, logits).token_ids
    masked = [*others[:2], Request(SamplingParams(**kind), seed=2), *others[3:]]
    drawn = draw(masked, logits)
    assert drawn.bad.tolist() == [0, 0, NOTHING_ALLOWED, 0, 0]
    assert drawn.token_ids[2] == 0
    rest = torch.tensor([0, 1, 3, 4])
    assert torch.equal(drawn.token_ids[rest], clean[rest])


def test_draws_among_what_is_left_equal_the_reference() -> None:
    requests = [replace(request, seed=i) for i, request in enumerate(grown())]
    logits = make_logits(len(requests), WIDTH)
    drawn = draw(requests, logits)
    assert not drawn.bad.any()
    for i, request in enumerate(requests):
        best = reference.race(
            expected(logits[i], request).double().numpy(),
            temperature=1.0,
            seed=i,
            position=len(request.tokens),
            choice=0,
            purpose=Purpose.TARGET,
        )
        assert int(drawn.token_ids[i]) == best.token_id


def test_neighbours_needs_do_not_change_a_row() -> None:
    plain = [Request(SamplingParams(temperature=0.5 + i % 3), seed=i) for i in range(36)]
    logits = make_logits(36, WIDTH)
    clean = draw(plain, logits)
    mixed = [a if i % 2 else b for i, (a, b) in enumerate(zip(plain, grown(), strict=True))]
    drawn = draw(mixed, logits)
    assert torch.equal(drawn.token_ids[1::2], clean.token_ids[1::2])
