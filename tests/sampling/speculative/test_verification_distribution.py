"""The tokens that speculation leaves have the target's distribution; what spoils it is found.

Chi-square of the pair of the first two tokens, the second under penalties and a grammar's mask
that depend on the first, and acceptance against its theory. Seeds are fixed, so the outcome is
fixed too; the false-alarm odds are those of choosing an unlucky seed, `ODDS` each. The wrong ones,
most of them shipped by somebody, miss by far: their p-values are below 1e-10.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from sampling import reference
from sampling.batch import SamplingBatch, Verification
from sampling.noise import LEVEL_TILE, NoiseKey, Purpose, stream
from sampling.params import SamplingParams
from sampling.rows import SamplingRows
from sampling.sampler import Sampler, SamplerConfig
from sampling.speculative import draws
from sampling.speculative.drafting import DraftMethod, draw_drafts
from sampling.speculative.draws import Distribution
from sampling.speculative.verification import Method
from tests.sampling.speculative.speculated_steps import Step
from tests.sampling.steps import put_masks

ODDS, IMPOSSIBLE = 1e-6, 1e-10
VOCAB, K, LENGTH, NUM_ROWS, NUM_ROUNDS = 8, 2, 12, 1000, 12
PENALTIES = {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 0.8}
WISHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalties and top-p": PENALTIES | {"temperature": 0.7, "top_p": 0.9},
    "grammar": {"constrained": True},
    "grammar, penalties and top-p": PENALTIES
    | {"constrained": True, "temperature": 0.7, "top_p": 0.9},
}
FIRST_IDS = [0, 2, 3, 5, 6, 7]
HISTORY = [3, 3, 1, 0, 5, 3, 7, 7, 2, 3, 6, 1]  # a prompt of 10, two tokens of output


def make_logits(seed: int) -> Tensor:
    """float32 [K + 1, VOCAB]."""
    return torch.randn(K + 1, VOCAB, generator=torch.Generator().manual_seed(seed))


TARGET = make_logits(13)
DRAFT = 0.4 * TARGET[:K] + make_logits(108)[:K]


def allowed_after(before: list[int]) -> list[int]:
    """The ids that the grammar allows after some tokens.

    Behind a token that it forbids, which only a draft can be, it allows everything.
    """
    if not before:
        return FIRST_IDS
    if before[0] not in FIRST_IDS:
        return list(range(VOCAB))
    return [token for token in range(VOCAB) if (token + before[-1]) % 3 != 2]


def masks_of(draft_ids: list[int]) -> list[list[int]]:
    """What the grammar allows at each depth of a step."""
    return [allowed_after(draft_ids[:depth]) for depth in range(K + 1)]


def target(depth: int, before: list[int], wish: dict[str, Any]) -> np.ndarray:
    """Compute the target's p by its definition, float64 [VOCAB]."""
    x, history = TARGET[depth].double().numpy(), HISTORY + before
    params = SamplingParams(**wish)
    x = reference.penalize(
        x,
        np.bincount(history[10:], minlength=VOCAB),
        np.isin(np.arange(VOCAB), history[:10]),
        repetition=params.repetition_penalty,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
    )
    if params.constrained:
        x = np.where(np.isin(np.arange(VOCAB), allowed_after(before)), x, -np.inf)
    kept = reference.kept(x, temperature=params.temperature, top_p=params.top_p)
    weights = np.where(kept, np.exp((x - x.max()) / params.temperature), 0.0)
    probabilities: np.ndarray = weights / weights.sum()
    return probabilities


def draft(depth: int, wish: dict[str, Any]) -> np.ndarray:
    """Compute the draft's q, float64 [VOCAB]."""
    return torch.softmax(DRAFT[depth].double() / wish.get("temperature", 1.0), 0).numpy()


@dataclass
class Sample:
    """The first tokens, drafts and acceptances of many requests."""

    first: Tensor  # int64 [m], the token at the first position
    second: Tensor  # int64 [m], at the second; drawn by the plain sampler where none was kept
    draft_ids: Tensor  # int64 [m, K]
    num_accepted: Tensor  # int64 [m]


def speculate(
    wish: dict[str, Any],
    drafting: DraftMethod,
    method: Method = "standard",
    *,
    counted: bool = True,
    written: int = K,
    masks: Callable[[list[int]], list[list[int]]] = masks_of,
    next_mask: Callable[[int, list[int]], list[int]] = lambda first, _: allowed_after([first]),
) -> Sample:
    """Draft, verify, and where the first draft was refused draw the next token plainly.

    Args:
        counted: whether penalties are reported of the drafts.
        written: at how many depths the draft logits reach verification.
        masks: what grammars allow at the depths of a step, from its drafts.
        next_mask: what they allow after the first token where its draft was refused, from that
            token and the drafts.
    """
    parts = []
    for round_id in range(NUM_ROUNDS):
        step = make_step(wish, round_id * NUM_ROWS, counted)
        batch, rows, _ = step.make(torch.device("cpu"))
        rows_np = np.arange(NUM_ROWS, dtype=np.int32)
        one = SamplingBatch(
            torch.from_numpy(rows_np), torch.full((NUM_ROWS,), LENGTH), rows_np, batch.needs
        )
        slots = torch.zeros(NUM_ROWS, K, VOCAB)
        for depth in range(K):
            step.draft_ids[:, depth] = draw_drafts(
                DRAFT[depth].expand(NUM_ROWS, -1),
                one,
                rows,
                depth,
                drafting,
                draft_logits=slots if drafting == "gumbel" else None,
            )
        slots[:, written:] = 0.0
        step.draft_logits = slots if drafting == "gumbel" else None
        drafted = step.draft_ids.tolist()
        if step.params[0].constrained:
            step.allowed = [ids for drafts in drafted for ids in masks(drafts)]
        verified, rows = step.verify(method)
        first = verified.token_ids[:, 0].tolist()
        allowed = [next_mask(*after) for after in zip(first, drafted, strict=True)]
        second = second_tokens(verified, one, rows, allowed)
        parts.append(
            (verified.token_ids[:, 0].long(), second, step.draft_ids, verified.num_accepted)
        )
    return Sample(*(torch.cat(column) for column in zip(*parts, strict=True)))


def second_tokens(
    verified: Verification, one: SamplingBatch, rows: SamplingRows, allowed: list[list[int]]
) -> Tensor:
    """The second token of each row, int64; drawn by the plain sampler where only one is kept.

    Args:
        one: the rows as they draw their first token.
        allowed: what a grammar allows after it.
    """
    second = verified.token_ids[:, 1].long()
    refused = (verified.num_new == 1).nonzero().flatten()
    rows.history[:, LENGTH] = verified.token_ids[:, 0]
    some = one.select(refused)
    some = replace(some, positions=some.positions + 1)
    if len(rows.grammar_masks):
        some = replace(some, mask_slots=put_masks(rows, [allowed[i] for i in refused.tolist()]))
    logits = TARGET[1].expand(len(refused), -1)
    second[refused] = Sampler(SamplerConfig(), rows)(logits, some).token_ids.long()
    return second


def make_step(wish: dict[str, Any], seed: int, counted: bool) -> Step:
    history = torch.zeros((NUM_ROWS, 16), dtype=torch.int32)
    history[:, :LENGTH] = torch.tensor(HISTORY)
    return Step(
        params=[SamplingParams(**wish)] * NUM_ROWS,
        logits=TARGET.repeat(NUM_ROWS, 1),
        vocab_size=VOCAB,
        history=history,
        num_tokens=[LENGTH] * NUM_ROWS,
        draft_ids=torch.zeros((NUM_ROWS, K), dtype=torch.int64),
        num_drafts=torch.full((NUM_ROWS,), K),
        seeds=[seed + row for row in range(NUM_ROWS)],
        choices=[0] * NUM_ROWS,
        counted=counted,
    )


def pair_p_value(sample: Sample, wish: dict[str, Any]) -> float:
    """The p-value of the pairs of tokens against p(first) p(second | first), by chi-square."""
    first = target(0, [], wish)
    p = np.stack([first[x] * target(1, [x], wish) for x in range(VOCAB)]).flatten()
    pairs = (sample.first * VOCAB + sample.second).numpy()
    observed = np.bincount(pairs, minlength=VOCAB**2)
    if observed[p == 0].any():
        return 0.0
    rare = p * len(pairs) < 5  # lumped together, as the test demands
    lump = rare & (p > 0)
    counts = np.append(observed[~rare], observed[lump].sum())
    expected = np.append(p[~rare], p[lump].sum()) * len(pairs)
    return float(stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue)


def acceptance_p_values(sample: Sample, wish: dict[str, Any], *, one_hot: bool) -> list[float]:
    """The p-values of acceptance at both depths, given the drafts before.

    Theory says sum min(p, q), or p(draft) where drafts are one-hot.
    """
    p_values = []
    for depth in range(K):
        reached = sample.num_accepted >= depth
        befores = [[x] for x in range(VOCAB)] if depth else [[]]
        rates, hits = [], []
        for before in befores:
            p, q = target(depth, before, wish), draft(depth, wish)
            some = reached
            if depth:
                some = reached & (sample.draft_ids[:, 0] == before[0])
            rate = p[q.argmax()] if one_hot else np.minimum(p, q).sum()
            rates.append(np.full(int(some.sum()), rate))
            hits.append((sample.num_accepted[some] > depth).numpy())
        rate, hit = np.concatenate(rates), np.concatenate(hits)
        z = (hit.sum() - rate.sum()) / np.sqrt((rate * (1.0 - rate)).sum())
        p_values.append(float(2.0 * stats.norm.sf(abs(z))))
    return p_values


@pytest.mark.parametrize("drafting", ["gumbel", "greedy"])
@pytest.mark.parametrize("name", WISHES)
def test_the_distribution_is_the_target_s_and_acceptance_is_what_theory_says(
    name: str, drafting: DraftMethod
) -> None:
    sample = speculate(WISHES[name], drafting)
    assert pair_p_value(sample, WISHES[name]) > ODDS
    assert min(acceptance_p_values(sample, WISHES[name], one_hot=drafting == "greedy")) > ODDS


def block_rates(wish: dict[str, Any]) -> list[float]:
    """The probability that block verification accepts a draft or more, and both, by its rule."""
    q = [draft(depth, wish) for depth in range(K)]
    rates = np.zeros(K)
    for x in range(VOCAB):
        p = [target(0, [], wish), target(1, [x], wish)]
        one = min(1.0, p[0][x] / q[0][x])
        left = np.maximum(one * p[1] - q[1], 0.0).sum()
        h = 1.0 if one == 1.0 else left / (left + 1.0 - one)
        both = q[1] * np.minimum(1.0, one * p[1] / q[1])
        rates += q[0][x] * np.array([both.sum() + (1.0 - both.sum()) * h, both.sum()])
    return rates.tolist()


@pytest.mark.parametrize("name", ["plain", "grammar, penalties and top-p"])
def test_blocks_keep_the_distribution_and_are_accepted_as_theory_says(name: str) -> None:
    wish = WISHES[name]
    sample = speculate(wish, "gumbel", "block")
    assert pair_p_value(sample, wish) > ODDS
    for depth, rate in enumerate(block_rates(wish)):
        accepted = int((sample.num_accepted > depth).sum())
        assert stats.binomtest(accepted, len(sample.first), rate).pvalue > ODDS
    p, q = [target(0, [], wish)], [draft(depth, wish) for depth in range(K)]
    alone = np.minimum(p[0], q[0])  # what is accepted where each draft is decided by itself
    both = sum(alone[x] * np.minimum(target(1, [x], wish), q[1]).sum() for x in range(VOCAB))
    assert sum(block_rates(wish)) > alone.sum() + both + 0.005


def again_p_value(monkeypatch: pytest.MonkeyPatch) -> float:
    """The p-value of pairs whose second token comes of a step that looks at positions again.

    The first step accepts both drafts or none, by its second coin. Where it accepts none, a second
    step begins one position later, where the first has looked, and decides by its first coin.
    """
    even, sevenths = torch.full((VOCAB,), 1 / 8), torch.tensor([1 / 7] * 7 + [0.0])
    p = torch.stack([0.5 * sevenths + torch.tensor([0.0] * 7 + [0.5]), even, even]).log()
    first_q = torch.stack([sevenths, even]).log()  # one half, and then all that is left of it
    # One half of a half of the tokens, and then nothing that the target takes.
    later_p = torch.stack([even, sevenths, even]).log()
    later_q = torch.tensor([[0.25] * 4 + [0.0] * 4, [0.0] * 7 + [1.0]]).log()
    monkeypatch.setattr(sys.modules[__name__], "TARGET", p)
    step = make_step({}, 0, counted=True)
    first = drafted(step, LENGTH, p, first_q)
    step.history[:, LENGTH] = first.token_ids[:, 0]
    step.num_tokens = [LENGTH + 1] * NUM_ROWS
    later = drafted(step, LENGTH + 1, later_p, later_q)
    second = torch.where(first.num_accepted > 0, first.token_ids[:, 1], later.token_ids[:, 0])
    nothing = torch.zeros(0)
    return pair_p_value(Sample(first.token_ids[:, 0].long(), second.long(), nothing, nothing), {})


def drafted(step: Step, length: int, target_logits: Tensor, draft_logits: Tensor) -> Verification:
    """A step of drafts drawn after `length` tokens, verified as a block."""
    step.logits = target_logits.repeat(NUM_ROWS, 1)
    batch, rows, _ = step.make(torch.device("cpu"))
    rows_np = np.arange(NUM_ROWS, dtype=np.int32)
    positions = torch.full((NUM_ROWS,), length)
    one = SamplingBatch(torch.from_numpy(rows_np), positions, rows_np, batch.needs)
    slots = torch.zeros(NUM_ROWS, K, VOCAB)
    for depth in range(K):
        spread = draft_logits[depth].expand(NUM_ROWS, -1)
        drawn = draw_drafts(spread, one, rows, depth, "gumbel", draft_logits=slots)
        step.draft_ids[:, depth] = drawn
    step.draft_logits = slots
    return step.verify("block")[0]


def test_coins_of_positions_that_come_again_are_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    assert again_p_value(monkeypatch) > ODDS

    def by_own_position(key: NoiseKey, depth: int) -> Tensor:
        return coins(key._replace(positions=key.positions + depth), 0)

    coins = draws.acceptance_uniforms
    monkeypatch.setattr(draws, "acceptance_uniforms", by_own_position)
    assert again_p_value(monkeypatch) < IMPOSSIBLE


def test_a_residual_without_the_ratio_before_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "scaled", lambda p, log_factor: p)
    wish = WISHES["plain"]
    assert pair_p_value(speculate(wish, "gumbel", "block"), wish) < IMPOSSIBLE


def test_coupled_keeps_the_distribution_and_accepts_more_than_chance() -> None:
    wish = WISHES["plain"]
    sample = speculate(wish, "coupled", "coupled")
    assert pair_p_value(sample, wish) > ODDS
    rate = float((sample.num_accepted > 0).double().mean())
    p, q = target(0, [], wish), draft(0, wish)
    # Drafts and tokens of one race agree more often than independent ones (Daliri et al. 2024,
    # "Coupling without communication", theorem 4: at least (1 - TV) / (1 + TV)).
    distance = 1.0 - np.minimum(p, q).sum()
    assert rate > (1 - distance) / (1 + distance) - 0.02 > (p * q).sum() + 0.1


def test_a_penalty_forgotten_at_the_second_position_is_found() -> None:
    sample = speculate(WISHES["penalties and top-p"], "greedy", counted=False)
    assert pair_p_value(sample, WISHES["penalties and top-p"]) < IMPOSSIBLE


@pytest.mark.parametrize("drafting", ["gumbel", "greedy"])
def test_a_mask_one_position_late_is_found(drafting: DraftMethod) -> None:
    def late(draft_ids: list[int]) -> list[list[int]]:
        return [list(range(VOCAB)), *masks_of(draft_ids)[:-1]]

    sample = speculate(WISHES["grammar"], drafting, masks=late)
    assert pair_p_value(sample, WISHES["grammar"]) < IMPOSSIBLE


@pytest.mark.parametrize("drafting", ["gumbel", "greedy"])
def test_a_mask_left_of_a_refused_draft_is_found(drafting: DraftMethod) -> None:
    """The grammar goes on from the refused draft instead of the token drawn in its place."""

    def left(first: int, draft_ids: list[int]) -> list[int]:
        return allowed_after(draft_ids[:1])

    sample = speculate(WISHES["grammar"], drafting, next_mask=left)
    assert pair_p_value(sample, WISHES["grammar"]) < IMPOSSIBLE


def test_draft_logits_not_written_behind_the_first_step_are_found() -> None:
    sample = speculate(WISHES["plain"], "gumbel", written=1)
    assert pair_p_value(sample, WISHES["plain"]) < IMPOSSIBLE
    assert acceptance_p_values(sample, WISHES["plain"], one_hot=False)[1] < IMPOSSIBLE


def test_a_stream_shared_by_draft_and_residual_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def shared(purpose: Purpose, level: int = LEVEL_TILE, depth: int = 0) -> int:
        return stream(Purpose.DRAFT if purpose is Purpose.RESIDUAL else purpose, level, depth)

    # Most drafts are the last token, refused for others which the draft proposes unequally.
    p = torch.tensor([0.24, 0.24, 0.24, 0.04, 0.04, 0.04, 0.04, 0.12])
    q = torch.tensor([0.16, 0.04, 0.08, 0.01, 0.02, 0.03, 0.04, 0.62])
    monkeypatch.setattr(sys.modules[__name__], "TARGET", p.log().expand(K + 1, -1))
    monkeypatch.setattr(sys.modules[__name__], "DRAFT", q.log().expand(K, -1))
    assert pair_p_value(speculate(WISHES["plain"], "gumbel"), WISHES["plain"]) > ODDS
    monkeypatch.setattr(draws, "stream", shared)
    assert pair_p_value(speculate(WISHES["plain"], "gumbel"), WISHES["plain"]) < IMPOSSIBLE


def test_strict_matching_is_found() -> None:
    """Comparing tokens drawn by independent noise is exact, but accepts far too few drafts."""
    sample = speculate(WISHES["plain"], "gumbel", "coupled")
    assert pair_p_value(sample, WISHES["plain"]) > ODDS  # it is exact, and slow
    assert acceptance_p_values(sample, WISHES["plain"], one_hot=False)[0] < IMPOSSIBLE


def test_matching_the_highest_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def match(x: Tensor, p: Distribution, q: Distribution, key: NoiseKey, depth: int) -> Tensor:
        return x == p.greedy()

    monkeypatch.setattr(draws, "accept", match)
    sample = speculate(WISHES["plain"], "gumbel")
    assert pair_p_value(sample, WISHES["plain"]) < IMPOSSIBLE
