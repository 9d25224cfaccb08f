"""The kept logprob against float64, and the identity that gives it its meaning.

Tolerance of what is kept, `paths.kept_logprobs`: two masses, the share that counts as no cut,
float32's rounding; and what processing rounds, at most four times, of logits below 16 at T of 0.5
or more.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling import reference
from sampling.noise import TILE
from sampling.params import SamplingParams
from sampling.race import LEAST_CUT, MASS_ERROR
from tests.sampling.speculative.speculated_steps import PROMPT_LEN, random_step
from tests.sampling.steps import Request, draw, make_logits

WIDTH = TILE + 100
PROCESSING_ERROR = 4 * 2.0**-24 * 16 / 0.5
SOME_IDS = tuple(range(0, WIDTH, 3))
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "top_p": 0.5},
    "top-k": {"top_k": 40},
    "top-p": {"top_p": 0.8, "temperature": 0.7},
    "min-p": {"min_p": 0.02, "temperature": 1.6},
    "all filters": {"top_k": 300, "top_p": 0.95, "min_p": 0.001},
    "grammar": {"constrained": True},
    "grammar, greedy": {"constrained": True, "temperature": 0.0},
    "allowed ids and bans": {
        "allowed_token_ids": SOME_IDS,
        "bad_words": ((3,), (2, 3, 6)),
        "min_tokens": 4,
        "stop_token_ids": (9, TILE),
    },
    "bias and penalties": PENALTIES | {"logit_bias": {5: 4.0, 8: -3.0}},
    "everything": PENALTIES
    | {
        "logit_bias": {6: 5.0, TILE + 2: 9.0},
        "allowed_token_ids": SOME_IDS,
        "bad_words": ((9,),),
        "constrained": True,
        "temperature": 0.6,
        "top_k": 200,
        "top_p": 0.9,
        "min_p": 0.002,
    },
}
UNCUT = {"greedy", "bias and penalties"}


def tolerance(value: float) -> float:
    return 2 * MASS_ERROR + LEAST_CUT + PROCESSING_ERROR + 2.0**-24 * abs(value)


def unmasked(x: Tensor, params: SamplingParams, tokens: list[int], start: int) -> np.ndarray:
    """Logits after bias and penalties, float64; the output begins at `start`."""
    logits = x.double().numpy().copy()
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    return reference.penalize(
        logits,
        np.bincount(tokens[start:], minlength=len(logits)),
        np.isin(np.arange(len(logits)), tokens[:start]),
        repetition=params.repetition_penalty,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
    )


def left(
    logits: np.ndarray,
    params: SamplingParams,
    tokens: list[int],
    start: int,
    allowed: list[int] | None,
) -> np.ndarray:
    """The tokens that masks and filters leave, bool [vocab_size]."""
    ids = np.arange(len(logits))
    mask = np.ones(len(logits), dtype=bool)
    if allowed is not None:
        mask &= np.isin(ids, allowed)
    if params.allowed_token_ids is not None:
        mask &= np.isin(ids, params.allowed_token_ids)
    for *beginning, last in params.bad_words:
        mask[last] &= tokens[len(tokens) - len(beginning) :] != beginning
    if len(tokens) - start < params.min_tokens:
        mask[list(params.stop_token_ids)] = False
    if params.greedy:
        return mask
    filters = {"top_k": params.top_k, "top_p": params.top_p, "min_p": params.min_p}
    masked = np.where(mask, logits, -np.inf)
    return mask & reference.kept(masked, temperature=params.temperature, **filters)  # type: ignore[arg-type]


def requests_of(kind: str) -> list[Request]:
    """Six choices of one kind with masks of their own, by a seed each."""
    params = SamplingParams(
        kept_logprob=True, logprobs=0, logprobs_mode="processed_logprobs", **KINDS[kind]
    )
    requests = [Request(params, seed=i, tokens=[1, 6, 2, 3, 6, 2]) for i in range(6)]
    for i, request in enumerate(requests):
        request.prompt_len = 4
        generator = torch.Generator().manual_seed(i)
        if params.constrained:
            request.allowed = torch.randint(0, WIDTH, (WIDTH // 2,), generator=generator).tolist()
    return requests


@pytest.mark.parametrize("kind", KINDS)
def test_kept_and_the_untruncated_logprob_equal_float64(kind: str) -> None:
    requests = requests_of(kind)
    logits = make_logits(len(requests), WIDTH)
    drawn = draw(requests, logits)
    assert drawn.logprobs is not None
    for i, request in enumerate(requests):
        params, token = request.params, int(drawn.token_ids[i])
        allowed = None if request.allowed is None else list(request.allowed)
        x = unmasked(logits[i], params, request.tokens, request.prompt_len)
        some = left(x, params, request.tokens, request.prompt_len, allowed)
        wanted = reference.kept_logprob(x, some, temperature=params.temperature)
        kept, chosen = float(drawn.logprobs.kept[i]), float(drawn.logprobs.chosen[i])
        assert (wanted > -1e-12) == (kind in UNCUT)
        assert (kept == 0.0) == (kind in UNCUT)
        assert abs(kept - wanted) < tolerance(wanted)
        whole = torch.from_numpy(x / (params.temperature or 1.0)).log_softmax(0)
        assert abs(chosen + kept - float(whole[token])) < 1e-4


def test_nothing_cut_is_exactly_zero() -> None:
    """Filters and masks that let everything pass, beside a row that does not ask."""
    wide: list[dict[str, Any]] = [
        {},
        {"temperature": 0.0},
        {"min_p": 1e-30},
        {"top_p": 1.0 - 1e-12},
        {"top_k": WIDTH - 1, "temperature": 0.2},  # cuts the last of all, a share of e^-60
        {"allowed_token_ids": tuple(range(WIDTH))},
        {"constrained": True},
        {"logit_bias": {4: 3.0}, "repetition_penalty": 1.4},
    ]
    requests = [Request(SamplingParams(kept_logprob=True, **kind), seed=3) for kind in wide]
    requests[6].allowed = range(WIDTH)
    asks_not = Request(SamplingParams(top_k=2, logprobs=1), seed=3)
    drawn = draw([*requests, asks_not], make_logits(9, WIDTH, scale=4.0))
    assert drawn.logprobs is not None
    assert drawn.logprobs.kept.tolist() == [0.0] * 9
    assert not drawn.logprobs.kept.signbit().any()


def test_a_tiny_temperature_keeps_a_finite_log_of_next_to_nothing() -> None:
    logits = torch.zeros(1, WIDTH)
    logits[0, 7] = 2.0
    params = SamplingParams(kept_logprob=True, temperature=1e-30, bad_words=((7,),))
    drawn = draw([Request(params, seed=1)], logits)
    assert drawn.logprobs is not None
    # WIDTH - 1 tokens, each 2 below; 2e30 rounds to float32, half a unit of 2^-24 relative.
    assert math.isclose(float(drawn.logprobs.kept[0]), -2e30, rel_tol=2.0**-23)


@pytest.mark.parametrize("has_draft_logits", [True, False])
def test_kept_at_every_verified_position_that_stands(has_draft_logits: bool) -> None:
    """Penalties of a depth know the drafts before it; grammars have a mask for each depth."""
    rows, k, vocab_size = 24, 2, 60
    wishes = [
        PENALTIES | {"kept_logprob": True, "constrained": True, "temperature": 0.6, "top_p": 0.9},
        {"kept_logprob": True, "constrained": True, "temperature": 0.0},
        PENALTIES | {"kept_logprob": True, "min_p": 0.01},
    ]
    step = random_step(wishes, rows, k, vocab_size, has_draft_logits=has_draft_logits)
    step.logits /= 3  # many tokens have a share of the mass
    generator = torch.Generator().manual_seed(4)
    lists = torch.randint(0, vocab_size, (len(step.logits), vocab_size), generator=generator)
    step.allowed = lists.tolist()
    verified, _ = step.verify()
    assert verified.logprobs is not None
    assert not verified.bad.any()
    i, depths = 0, set()
    for row in range(rows):
        params, tokens = step.params[row], step.history[row, : step.num_tokens[row]].tolist()
        for depth in range(int(verified.num_new[row])):
            x = unmasked(step.logits[i + depth, :vocab_size], params, tokens, PROMPT_LEN)
            allowed = list(step.allowed[i + depth] or ()) if params.constrained else None
            some = left(x, params, tokens, PROMPT_LEN, allowed)
            wanted = reference.kept_logprob(x, some, temperature=params.temperature)
            assert wanted < 0.0
            assert abs(float(verified.logprobs.kept[i + depth]) - wanted) < tolerance(wanted)
            tokens.append(int(verified.token_ids[row, depth]))
            depths.add(depth)
        i += 1 + int(step.num_drafts[row])
    assert depths == {0, 1, 2}
