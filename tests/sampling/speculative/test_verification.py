"""Verification against the float64 reference on the same noise, and against the plain sampler.

Decisions closer than `CLOSE` are skipped: tile masses are float32 sums (`race.MASS_ERROR`) and
penalties are rounded to float32. At most one in 1,000 of these is; the seeds are fixed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling import reference
from sampling.batch import NOTHING_ALLOWED, UNUSABLE_LOGITS, Verification
from sampling.noise import Purpose
from sampling.params import SamplingParams
from sampling.speculative.verification import Method, conditional_rates, rates_of_length
from tests.sampling.speculative.speculated_steps import PROMPT_LEN, Step, random_step
from tests.sampling.steps import Host, Request

CLOSE = 1e-4
EVERYTHING: dict[str, Any] = {
    "temperature": 0.8,
    "top_p": 0.95,
    "repetition_penalty": 1.3,
    "presence_penalty": 0.9,
    "frequency_penalty": 0.6,
    "logit_bias": {4: 2.5, 5: -2.0},
    "min_tokens": 12,
    "stop_token_ids": (7, 9),
    "bad_words": ((3,), (4, 6)),
}
WISHES: dict[str, list[dict[str, Any]]] = {
    "plain": [{}, {"temperature": 0.6}],
    "greedy": [{"temperature": 0.0}],
    "filters": [{"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.05}, {"top_k": 9, "top_p": 0.9}],
    "everything": [
        EVERYTHING,
        EVERYTHING | {"temperature": 0.0},
        {"allowed_token_ids": tuple(range(0, 40, 3)), "presence_penalty": 2.0},
    ],
}


def starts(step: Step) -> list[int]:
    lengths = step.num_drafts.long() + 1
    return (lengths.cumsum(0) - lengths).tolist()


def target(step: Step, row: int, depth: int, start: int) -> np.ndarray:
    """Compute p by its definition, float64 [vocab_size]; drafts before `depth` count as history."""
    params, length = step.params[row], step.num_tokens[row]
    drafts = step.draft_ids[row, :depth] % step.vocab_size  # after a missing one p is not used
    history = [*step.history[row, :length].tolist(), *drafts.tolist()]
    x = step.logits[start + depth, : step.vocab_size].double().numpy().copy()
    for token, bias in params.logit_bias.items():
        x[token] += bias
    if len(history) - PROMPT_LEN < params.min_tokens:
        x[list(params.stop_token_ids)] = -np.inf
    for *before, last in params.bad_words:
        if history[len(history) - len(before) :] == before:
            x[last] = -np.inf
    if params.allowed_token_ids is not None:
        x[~np.isin(np.arange(len(x)), params.allowed_token_ids)] = -np.inf
    x = reference.penalize(
        x,
        np.bincount(history[PROMPT_LEN:], minlength=len(x)),
        np.isin(np.arange(len(x)), history[:PROMPT_LEN]),
        repetition=params.repetition_penalty,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
    )
    if params.greedy:
        one_hot: np.ndarray = (np.arange(len(x)) == x.argmax()).astype(np.float64)
        return one_hot
    kept = reference.kept(
        x,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
    )
    weights = np.where(kept, np.exp((x - x.max()) / params.temperature), 0.0)
    probabilities: np.ndarray = weights / weights.sum()
    return probabilities


def expected(step: Step, row: int, start: int, method: Method = "standard") -> reference.Verified:
    num_drafts = int(step.num_drafts[row])
    q = None
    if step.draft_logits is not None:
        q = list(torch.softmax(step.draft_logits[row].double(), 1).numpy())
    p = [target(step, row, depth, start) for depth in range(num_drafts + 1)]
    drafts = step.draft_ids[row, :num_drafts].tolist()
    at = {"seed": row * 7919 - 3, "position": step.num_tokens[row], "choice": row % 3}
    if q is None:
        return reference.verify_by_draws(p, drafts, **at)
    if method == "block" and not step.params[row].greedy:
        return reference.verify_block(p, q, drafts, **at)
    return reference.verify(p, q, drafts, **at)


def tokens_of(verified: Verification, row: int) -> list[int]:
    tokens: list[int] = verified.token_ids[row].tolist()
    return tokens[: int(verified.num_new[row])]


@pytest.mark.parametrize("has_draft_logits", [True, False])
@pytest.mark.parametrize("name", WISHES)
@pytest.mark.parametrize("vocab_size", [40, 2100])
@pytest.mark.parametrize("method", ["standard", "block"])
def test_tokens_equal_the_reference(
    method: Method, name: str, vocab_size: int, has_draft_logits: bool
) -> None:
    step = random_step(WISHES[name], 40, 3, vocab_size, has_draft_logits=has_draft_logits)
    step.draft_ids[4, 1], step.draft_ids[7, 0] = -1, vocab_size
    verified, _ = step.verify(method)
    found: set[int] = set()
    for row, start in enumerate(starts(step)):
        wanted = expected(step, row, start, method)
        if wanted.margin > CLOSE:
            assert tokens_of(verified, row) == wanted.token_ids
            assert int(verified.num_accepted[row]) == len(wanted.token_ids) - 1
            found.add(len(wanted.token_ids))
    assert not verified.bad.any()
    assert found >= {1, 2, 4}


def test_penalties_forgotten_behind_the_first_draft_are_found() -> None:
    step = random_step(WISHES["everything"], 40, 3, 40, has_draft_logits=False, alike=True)
    verified, _ = replace(step, counted=False).verify()
    wrong = [
        tokens_of(verified, row) != expected(step, row, start).token_ids
        for row, start in enumerate(starts(step))
    ]
    assert any(wrong)


def test_what_stands_is_counted_and_only_that() -> None:
    step = random_step([EVERYTHING], 20, 3, 40, has_draft_logits=True)
    before = step.make(torch.device("cpu"))[1].counts.words.clone()
    verified, rows = step.verify()
    for row in range(20):
        counts = np.bincount(tokens_of(verified, row), minlength=40)
        assert ((rows.counts.words[row] - before[row]).numpy() == 2 * counts).all()


def test_room_ends_a_run() -> None:
    step = random_step([{}], 30, 3, 40, has_draft_logits=True)
    free, _ = step.verify()
    assert (free.num_new == 4).any()
    for room in (1, 2, 3):
        short, _ = replace(step, room=torch.full((30,), room)).verify()
        assert torch.equal(short.num_new, free.num_new.clamp(max=room))
        assert torch.equal(short.num_accepted, free.num_accepted.clamp(max=room))
        for row in range(30):
            assert tokens_of(short, row) == tokens_of(free, row)[:room]
        assert not short.token_ids[:, room:].any()


@pytest.mark.parametrize("wish", [{}, {"temperature": 0.0}])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_row_keeps_the_tokens_before_it_and_stays_alone(
    bad: float, wish: dict[str, Any]
) -> None:
    """The bad logit is that of the draft, so that a greedy row's highest one is still its draft."""
    step = random_step([wish], 30, 3, 40, has_draft_logits=True)
    clean, _ = step.verify()
    row = int((clean.num_new == 4).nonzero()[0])
    for depth in range(4):
        logits = step.logits.clone()
        logits[starts(step)[row] + depth, clean.token_ids[row, depth]] = bad
        verified, _ = replace(step, logits=logits).verify()
        assert verified.bad.tolist() == [UNUSABLE_LOGITS if i == row else 0 for i in range(30)]
        assert tokens_of(verified, row) == tokens_of(clean, row)[:depth]
        others = torch.arange(30) != row
        assert torch.equal(verified.token_ids[others], clean.token_ids[others])
    short = int(((clean.num_new == 1) & (step.num_drafts == 3)).nonzero()[0])
    logits = step.logits.clone()
    logits[starts(step)[short] + 1] = bad  # after the run nobody looks
    verified, _ = replace(step, logits=logits).verify()
    assert torch.equal(verified.token_ids, clean.token_ids)
    assert not verified.bad.any()


@pytest.mark.parametrize("method", ["standard", "coupled"])
@pytest.mark.parametrize("wish", [{}, {"temperature": 0.0}])
def test_token_0_is_no_accepted_draft_of_a_bad_row(wish: dict[str, Any], method: Method) -> None:
    """A bad row's token is 0, which may be its draft too: its later drafts are not looked at."""
    step = random_step([wish], 30, 3, 40, has_draft_logits=True)
    step.draft_ids[:, 0] = 0
    logits = step.logits.clone()
    logits[starts(step)] = torch.nan
    verified, _ = replace(step, logits=logits).verify(method)
    assert (verified.bad == UNUSABLE_LOGITS).all()
    assert not verified.num_new.any()
    assert not verified.num_accepted.any()


def test_masks_that_leave_nothing_behind_accepted_drafts_have_a_code_of_their_own() -> None:
    step = random_step([{"constrained": True}], 30, 3, 40, has_draft_logits=True)
    everything = list(range(40))
    clean, _ = replace(step, allowed=[everything] * len(step.logits)).verify()
    row = int((clean.num_new == 4).nonzero()[0])
    for depth in range(4):
        allowed = [everything] * len(step.logits)
        allowed[starts(step)[row] + depth] = []
        verified, _ = replace(step, allowed=allowed).verify()
        codes = [NOTHING_ALLOWED if i == row else 0 for i in range(30)]
        assert verified.bad.tolist() == codes
        assert tokens_of(verified, row) == tokens_of(clean, row)[:depth]
        others = torch.arange(30) != row
        assert torch.equal(verified.token_ids[others], clean.token_ids[others])


def test_bad_draft_logits_are_refused_and_harm_nothing() -> None:
    step = random_step([{}], 30, 1, 40, has_draft_logits=True)
    assert step.draft_logits is not None
    step.draft_logits[:10, 0, 3] = torch.nan
    step.draft_logits[10:20] = -torch.inf
    step.draft_logits[20:, 0, 5] = torch.inf
    verified, _ = step.verify()
    assert (verified.num_new == 1).all()
    assert not verified.bad.any()
    p = [target(step, row, 0, start) for row, start in enumerate(starts(step))]
    key = [{"seed": row * 7919 - 3, "position": 20, "choice": row % 3} for row in range(30)]
    for row in range(30):
        purpose = Purpose.RESIDUAL if step.num_drafts[row] else Purpose.TARGET
        wanted = reference.two_level(p[row], **key[row], purpose=purpose)
        assert tokens_of(verified, row) == [wanted.token_id]


def test_synthetic_accepts_at_its_rates_whatever_the_drafts() -> None:
    assert rates_of_length(2.5, 4) == [1.0, 0.5, 0.0, 0.0]
    assert conditional_rates([0.8, 0.4, 0.0, 0.0]) == [0.8, 0.5, 0.0, 0.0]
    step = random_step([{}, {"temperature": 0.0}], 400, 3, 12, has_draft_logits=True)
    rates = conditional_rates([0.9, 0.45, 0.3])
    verified, _ = step.verify("synthetic", rates)
    drafted = step.num_drafts == 3
    for depth, rate in enumerate([0.9, 0.45, 0.3]):
        count = int((verified.num_new[drafted] > depth + 1).sum())
        assert abs(count - 399 * rate) < 4.9 * (399 * rate * (1 - rate)) ** 0.5  # odds 1e-6
    for row in range(400):
        num_accepted = int(verified.num_accepted[row])
        assert num_accepted == int(verified.num_new[row]) - 1
        assert tokens_of(verified, row)[:-1] == step.draft_ids[row, :num_accepted].tolist()


MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("params", [{"temperature": 0.0}, EVERYTHING, {"top_k": 8}])
@pytest.mark.parametrize("method", ["standard", "block", "coupled"])
def test_generation_equals_the_plain_sampler(
    method: Method, params: dict[str, Any], mode: str
) -> None:
    """With one-hot drafts tokens and logprobs are the plain sampler's, bit for bit.

    The rows have drafts that are all the plain tokens, wrong from some depth on, and missing.
    """
    wish = params | {"logprobs": 2, "logprob_token_ids": (0, 7, 7), "logprobs_mode": mode}
    num_rows, k, length = 8, 3, 12
    requests = [
        Request(SamplingParams(**wish), seed=row + 5, choice=row % 2) for row in range(num_rows)
    ]
    plain, reported = plain_run(requests, length)
    at = torch.zeros(num_rows, dtype=torch.int64)
    rounds = 0
    while (at < length - k).all():
        step = next_step(requests, plain, at, k, rounds)
        verified, _ = step.verify(method)
        assert verified.logprobs is not None
        for row, start in enumerate(starts(step)):
            tokens, first = tokens_of(verified, row), int(at[row])
            assert tokens == plain[row][first : first + len(tokens)]
            for depth in range(len(tokens)):
                for name, column in verified.logprobs._asdict().items():
                    wanted = getattr(reported[first + depth], name)[row]
                    assert torch.equal(column[start + depth], wanted), name
            at[row] += len(tokens)
        rounds += 1
    assert rounds < length - k


def logits_after(tokens: list[int]) -> Tensor:
    """Logits float32 [40] of a model that depend on the last two tokens and the position."""
    seed = tokens[-1] * 1009 + tokens[-2] * 31 + len(tokens)
    return torch.randn(40, generator=torch.Generator().manual_seed(seed)) * 2


def plain_run(requests: list[Request], length: int) -> tuple[list[list[int]], list[Any]]:
    """Run the plain sampler: the tokens of each request, and the logprobs of each step."""
    host = Host(len(requests), 40)
    for row, request in enumerate(requests):
        host.admit(row, Request(request.params, request.seed, request.choice))
    reported = []
    for _ in range(length):
        logits = torch.stack([logits_after(host.requests[row].tokens) for row in host.requests])
        reported.append(host.step(list(host.requests), logits).logprobs)
    return [host.requests[row].tokens[3:] for row in host.requests], reported


def next_step(
    requests: list[Request], plain: list[list[int]], at: Tensor, k: int, rounds: int
) -> Step:
    """The step after `at` tokens of each row.

    Row r drafts the plain tokens, but a wrong one at depth (r + rounds) mod (k + 2).
    """
    num_rows = len(requests)
    history = torch.zeros((num_rows, 64), dtype=torch.int32)
    draft_ids = torch.zeros((num_rows, k), dtype=torch.int32)
    logits = []
    for row, request in enumerate(requests):
        tokens = request.tokens + plain[row][: int(at[row])]
        history[row, : len(tokens)] = torch.tensor(tokens)
        drafts = plain[row][int(at[row]) : int(at[row]) + k]
        wrong = (row + rounds) % (k + 2)
        if wrong < k:
            drafts[wrong] = -1 if rounds % 2 else (drafts[wrong] + 1) % 40
        draft_ids[row] = torch.tensor(drafts)
        for depth in range(k + 1):
            logits.append(logits_after(tokens + [max(x, 0) for x in drafts[:depth]]))
    return Step(
        params=[request.params for request in requests],
        logits=torch.stack(logits),
        vocab_size=40,
        history=history,
        num_tokens=[3 + int(n) for n in at],
        draft_ids=draft_ids,
        num_drafts=torch.full((num_rows,), k),
        seeds=[request.seed for request in requests],
        choices=[request.choice for request in requests],
        prompt_len=3,
    )
