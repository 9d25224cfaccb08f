"""The checks of `tailrace verify`. Each takes the draws it checks, so tests can give it bad ones.

A check of counts has false-alarm odds of `ODDS`; a replay compares tokens with those that the
noise contract determines and can raise no false alarm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from sampling.noise import Purpose
from sampling.params import SamplingParams
from sampling.selftest.paths import Call, Draws, Step
from sampling.selftest.speculative_paths import SpeculatedDraws
from sampling.selftest.statistics import Comparison, chi_square, poisson
from sampling.selftest.tails import ACCEPT_GAP, ACCEPTED, CASES, REFUSED, SEED, TailCase, wins

ODDS = 1e-8
NUM_OTHERS = 100
"""Number of draws that a replay adds which no tail wins."""


class Result(NamedTuple):
    """One line of the table that `tailrace verify` prints."""

    check: str
    path: str
    statistic: str
    threshold: str
    odds: float  # of a false alarm
    passed: bool


def replay(check: str, path: str, draw: Draws, case: TailCase, purpose: Purpose) -> Result:
    """Check that the tails win the draws due to them, with the tokens due, and no others."""
    positions, tokens = wins(case, purpose)
    # The same on all ranks that draw together.
    others = torch.randint(0, case.draws, (NUM_OTHERS,), generator=torch.Generator().manual_seed(0))
    others = others[~torch.isin(others, positions)]
    drawn = draw(case.logits(), torch.cat((positions, others)), SEED)
    expected = torch.cat((tokens, torch.zeros_like(others)))
    due = int((drawn[: len(tokens)] == tokens).sum())
    words = f"{due} of {len(tokens)} rare tokens"
    return Result(check, path, words, "all", 0.0, torch.equal(drawn, expected))


def replay_acceptance(check: str, path: str, draw: Draws) -> Result:
    """Check that an acceptance of probability e^-19 comes when it is due, and only then."""
    kept = draw(ACCEPT_LOGITS, torch.tensor(ACCEPTED), SEED)
    refused = draw(ACCEPT_LOGITS, torch.tensor(REFUSED), SEED)
    words = f"{int(kept.sum())} of {len(kept)}, {int(refused.sum())} wrong"
    passed = bool(kept.all()) and not bool(refused.any())
    return Result(check, path, words, "all, 0 wrong", 0.0, passed)


ACCEPT_LOGITS = torch.tensor([0.0, -ACCEPT_GAP])


def tail_count(path: str, draw: Draws, case: TailCase, num_draws: int, seed: int) -> Result:
    """Check how often a tail wins, with a fresh seed."""
    count, size = 0, 1 << 22
    logits = case.logits()
    for first in range(0, num_draws, size):
        positions = torch.arange(first, min(first + size, num_draws))
        count += int((draw(logits, positions, seed) != 0).sum())
    comparison = poisson(count, case.probability * num_draws, ODDS)
    return result_of(f"count: {case.name}", path, comparison)


class Shape(NamedTuple):
    """A distribution to draw from."""

    name: str
    logits: Tensor  # float32 [vocab_size]


def peaked() -> Shape:
    """A shape in which a few tokens have most of the mass, over one tile."""
    return Shape("peaked", torch.randn(1024, generator=torch.Generator().manual_seed(1)) * 3)


def shapes() -> list[Shape]:
    """Shapes over a part of a tile, one and several: flat, peaked, heavy-tailed, with two peaks.

    Here and below, 16 divides the sizes that ranks share: kernels divide no others.
    """
    return [
        Shape("flat", torch.zeros(111)),
        peaked(),
        Shape("heavy tail", -1.1 * torch.arange(1.0, 5009.0).log()),
        Shape("two peaks", torch.cat((torch.tensor([5.0]), torch.zeros(3006), torch.ones(1) * 5))),
    ]


def frequencies(path: str, draw: Draws, shape: Shape, num_draws: int, seed: int) -> Result:
    """Chi-square of the drawn tokens against softmax(logits)."""
    tokens = draw(shape.logits, torch.arange(num_draws), seed)
    probabilities = torch.softmax(shape.logits.double(), 0)
    return _counted(f"frequencies: {shape.name}", path, tokens, probabilities)


FILTERED = SamplingParams(temperature=0.8, top_k=12, top_p=0.9, min_p=0.01, seed=0)
TIED_K = SamplingParams(top_k=5, seed=0)


def filtered_frequencies(path: str, draw: Draws, num_draws: int, seed: int) -> Result:
    """Chi-square under `FILTERED`; a filtered token must never be drawn."""
    logits = torch.randn(2512, generator=torch.Generator().manual_seed(2)) * 2
    return _counted(
        "frequencies: top-k, top-p, min-p",
        path,
        draw(logits, torch.arange(num_draws), seed),
        _filtered(logits, FILTERED),
    )


def tied_frequencies(path: str, draw: Draws, num_draws: int, seed: int) -> Result:
    """Chi-square under `TIED_K`: among equals exactly top-k tokens are kept, the lowest ids."""
    logits = torch.zeros(1504)
    logits[[40, 1100]] = 1.0
    tokens = draw(logits, torch.arange(num_draws), seed)
    return _counted("frequencies: ties at k", path, tokens, _filtered(logits, TIED_K))


def speculated_frequencies(path: str, draw: SpeculatedDraws, num_draws: int, seed: int) -> Result:
    """Chi-square of speculated tokens against the target's distribution.

    The draft holds most of a token the target hardly wants, so most tokens are recovered, from
    several that the draft proposes too: noise shared between the two shows at once.
    """
    target = torch.tensor([0.3, 0.3, 0.3, 0.1]).double()
    draft = torch.tensor([0.2, 0.05, 0.15, 0.6]).double()
    tokens = draw(target.log().float(), draft.log().float(), torch.arange(num_draws), seed)
    return _counted("frequencies: speculated", path, tokens, target)


MASKED = SamplingParams(temperature=0.8, top_k=30, top_p=0.95, seed=0)
MASK_IDS, FEW_MASK_IDS = tuple(range(7, 2512, 60)), (0, 2, 3)
"""What the grammars of the checks allow, of 2,512 tokens and of four."""

KEPT_CASES: tuple[tuple[SamplingParams, Sequence[int] | None], ...] = (
    (SamplingParams(top_k=50), None),
    (SamplingParams(temperature=0.7, top_p=0.8), None),
    (SamplingParams(min_p=0.05), MASK_IDS),
    (SamplingParams(temperature=0.0), MASK_IDS),
    (SamplingParams(allowed_token_ids=MASK_IDS, bad_words=((7,),)), None),
    (SamplingParams(), None),
)
"""Requests whose kept logprob is checked, each with what its grammar allows."""

KEPT_ERROR = 1e-4
"""Largest error of processed logprob plus kept; `paths.kept_logprobs` derives a smaller one."""

Measure: TypeAlias = Callable[
    [SamplingParams, Tensor, Sequence[int] | None], tuple[int, float, float]
]
"""Params, logits float32 [vocab_size] and allowed ids to a token, its logprob and the kept one."""


def constrained_frequencies(path: str, draw: SpeculatedDraws, num_draws: int, seed: int) -> Result:
    """Chi-square of speculated tokens under a grammar: p restricted to its ids, renormalised.

    The draft, which knows nothing of the grammar, proposes a token that it forbids.
    """
    target = torch.tensor([0.3, 0.3, 0.2, 0.2]).double()
    draft = torch.tensor([0.2, 0.5, 0.25, 0.05]).double()
    tokens = draw(target.log().float(), draft.log().float(), torch.arange(num_draws), seed)
    return _counted("frequencies: speculated, grammar", path, tokens, _restricted(target))


def _restricted(probabilities: Tensor) -> Tensor:
    """The probabilities of four tokens restricted to `FEW_MASK_IDS`, renormalised."""
    allowed, restricted = list(FEW_MASK_IDS), torch.zeros_like(probabilities)
    restricted[allowed] = probabilities[allowed]
    return restricted / restricted.sum()


def masked_frequencies(path: str, draw: Draws, num_draws: int, seed: int) -> Result:
    """Chi-square of plain draws whose mask allows `MASK_IDS`, under `MASKED`."""
    logits = torch.randn(2512, generator=torch.Generator().manual_seed(3))
    masked = torch.full_like(logits, -torch.inf)
    masked[list(MASK_IDS)] = logits[list(MASK_IDS)]
    tokens = draw(logits, torch.arange(num_draws), seed)
    return _counted("frequencies: grammar", path, tokens, _filtered(masked, MASKED))


def kept_logprobs(path: str, measure: Measure) -> Result:
    """Check that processed logprob plus kept is the logprob without masks and filters."""
    logits = torch.randn(2512, generator=torch.Generator().manual_seed(4)) * 2
    worst = 0.0
    for params, allowed in KEPT_CASES:
        token, chosen, kept = measure(params, logits, allowed)
        whole = (logits.double() / (params.temperature or 1.0)).log_softmax(0)
        worst = max(worst, abs(chosen + kept - float(whole[token])))
    passed = worst < KEPT_ERROR
    return Result("kept logprob", path, f"{worst:.1e}", f"{KEPT_ERROR:.0e}", 0.0, passed)


def greedy_ties(path: str, draw: Draws) -> Result:
    """Check that greedy takes the lowest id among the highest logits, wherever the equals lie."""
    wrong = 0
    ties = ([0, 1], [1023, 1024], [5, 4000], [4095, 4999], list(range(5000)))
    for ids in ties:
        logits = torch.full((5000,), -1.0)
        logits[ids] = 2.0
        wrong += int(draw(logits, torch.arange(3), 7)[0] != min(ids))
    return Result("greedy ties", path, f"{wrong} of {len(ties)} wrong", "0", 0.0, wrong == 0)


NUM_REQUESTS = 64


def slot_invariance(path: str, step: Step) -> Result:
    """Check that a request's token is the same alone, among others, and in any order and slot."""
    calls = _requests()
    together = step(calls)
    alone = [step([call._replace(slot=0)])[0] for call in calls]
    generator = torch.Generator().manual_seed(5)
    order = torch.randperm(NUM_REQUESTS, generator=generator).tolist()
    slots = torch.randperm(NUM_REQUESTS, generator=generator).tolist()
    moved = step([calls[i]._replace(slot=slots[i]) for i in order])
    shuffled = dict(zip(order, moved, strict=True))
    changed = sum(not together[i] == alone[i] == shuffled[i] for i in range(NUM_REQUESTS))
    words = f"{changed} of {NUM_REQUESTS} changed"
    return Result("slot invariance", path, words, "0", 0.0, changed == 0)


def _requests() -> list[Call]:
    """Requests that are greedy and random, filtered and not, penalised and not."""
    generator = torch.Generator().manual_seed(4)
    return [
        Call(
            SamplingParams(
                temperature=(0.0, 0.6, 1.0, 1.4)[i % 4],
                top_k=20 if i % 3 == 1 else 0,
                top_p=0.9 if i % 5 == 2 else 1.0,
                presence_penalty=1.5 if i % 7 == 3 else 0.0,
                seed=i,
            ),
            seed=i,
            logits=torch.randn(3008, generator=generator) * 2,
            slot=i,
        )
        for i in range(NUM_REQUESTS)
    ]


def _filtered(logits: Tensor, params: SamplingParams) -> Tensor:
    """The probabilities after the filters, by a full sort; float64 [vocab_size]."""
    order = torch.sort(logits, descending=True, stable=True).indices
    scaled = logits[order].double() / params.temperature
    probabilities = torch.softmax(scaled, 0)
    kept = probabilities >= params.min_p * probabilities[0]
    kept[params.top_k :] = False
    probabilities = probabilities * kept
    before = probabilities.cumsum(0) - probabilities
    kept &= before < params.top_p * probabilities.sum()
    filtered = torch.zeros_like(probabilities)
    filtered[order] = probabilities * kept
    return filtered / filtered.sum()


def _counted(check: str, path: str, tokens: Tensor, probabilities: Tensor) -> Result:
    """The line of a chi-square check of drawn tokens."""
    counts = torch.bincount(tokens, minlength=len(probabilities))
    return result_of(check, path, chi_square(counts, probabilities, ODDS))


def result_of(check: str, path: str, comparison: Comparison) -> Result:
    """The line of a statistical test, which passes where its p-value reaches `ODDS`."""
    passed = comparison.p_value >= ODDS and not math.isnan(comparison.p_value)
    return Result(check, path, comparison.statistic, comparison.threshold, ODDS, passed)


def replays(path: str, draw: Draws, purpose: Purpose) -> list[Result]:
    """Run every replay that is recorded for a purpose."""
    cases = [case for case in CASES if len(wins(case, purpose)[0])]
    return [replay(f"fp64 replay: {case.name}", path, draw, case, purpose) for case in cases]
