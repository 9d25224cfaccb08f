"""The draws of speculation against float64 textbook versions fed the same Philox words.

Tokens are equal wherever the reference's best two keys differ by more than the error of the
float32 tile sums (`race.MASS_ERROR`, twice); at most one draw in 100,000 is that close, and
those are skipped. The distribution tests use fixed seeds, so their outcome is fixed too; their
false-alarm odds are those of choosing an unlucky seed, 1e-6 each.
"""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from sampling import reference
from sampling.filters.plain import cut
from sampling.noise import NoiseKey, Purpose, stream
from sampling.race import MASS_ERROR, Cut, race, tile_masses
from sampling.speculative.draws import (
    Distribution,
    accept,
    acceptance_uniforms,
    draft_distribution,
    draw_draft,
    recovered_draw,
)

FALSE_ALARM = 1e-6


def make_key(n: int, seed: int = 11, position: int = 5) -> NoiseKey:
    return NoiseKey(
        torch.arange(n) * 1_000_003 + seed,
        torch.full((n,), position),
        torch.arange(n) % 3,
    )


def make_logits(n: int, width: int, seed: int, scale: float = 2.0) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)) * scale


def softmax(logits: Tensor, temperature: float = 1.0) -> np.ndarray:
    return torch.softmax(logits.double() / temperature, -1).numpy()


def words(key: NoiseKey, row: int) -> dict[str, int]:
    return {
        "seed": int(key.seeds[row]),
        "position": int(key.positions[row]),
        "choice": int(key.choices[row]),
    }


def agree(token_id: Tensor, expected: reference.Draw) -> bool:
    return int(token_id) == expected.token_id or expected.margin < 2 * MASS_ERROR


@pytest.mark.parametrize("width", [1, 7, 111, 1025, 5000])
def test_draft_draws_equal_the_reference(width: int) -> None:
    n, logits = 12, make_logits(12, width, 1)
    logits[:, width // 2 : width // 2 + 3] = -torch.inf
    logits[:, 0] = 0.0
    key = make_key(n)
    for depth in (0, 3):
        drawn = draw_draft(logits, key, Purpose.DRAFT, depth)
        for i, q in enumerate(softmax(logits)):
            expected = reference.two_level(q, **words(key, i), purpose=Purpose.DRAFT, depth=depth)
            assert agree(drawn[i], expected)


def test_acceptance_uniforms_are_those_of_the_contract() -> None:
    key = make_key(6)
    for depth in (0, 1, 7):
        for i, u in enumerate(acceptance_uniforms(key, depth)):
            stream_id = stream(Purpose.ACCEPT, depth=depth)
            assert u.item() == reference.uniform(index=0, **words(key, i), stream_id=stream_id)


def test_acceptance_equals_the_reference() -> None:
    n, width = 400, 40
    logits, draft_logits, key = make_logits(n, width, 2), make_logits(n, width, 3), make_key(n)
    temperature = torch.full((n,), 0.7, dtype=torch.float64)
    draft_ids = torch.arange(n) % width
    target = Distribution.of(logits, temperature)
    kept = accept(draft_ids, target, draft_distribution(draft_logits), key, 2)
    p, q = softmax(logits, 0.7), softmax(draft_logits)
    for i, x in enumerate(draft_ids.tolist()):
        expected = reference.accept(p[i], q[i], x, **words(key, i), depth=2)
        assert bool(kept[i]) == expected
    assert 0 < kept.sum() < n


@pytest.mark.parametrize("has_draft", [True, False])
@pytest.mark.parametrize("width", [2, 111, 3000])
def test_recovered_tokens_equal_the_reference(has_draft: bool, width: int) -> None:
    n = 25
    logits, draft_logits, key = make_logits(n, width, 4), make_logits(n, width, 5), make_key(n)
    temperature = torch.linspace(0.5, 2.0, n, dtype=torch.float64)
    draft_ids = torch.arange(n) % width
    draft = draft_distribution(draft_logits) if has_draft else None
    drawn = recovered_draw(draft_ids, Distribution.of(logits, temperature), draft, key)
    for i, x in enumerate(draft_ids.tolist()):
        p = softmax(logits[i], float(temperature[i]))
        q = softmax(draft_logits[i]) if has_draft else None
        assert agree(drawn[i], reference.recovered(p, q, x, **words(key, i)))


def test_close_distributions_lose_no_digits() -> None:
    # p - q is about 1e-7 p: float32 would round it to multiples of 0.6 of that.
    n, width = 200, 2000
    draft_logits = make_logits(1, width, 6).expand(n, -1)
    logits = draft_logits * (1 + 1e-7)
    logits = torch.where(logits == draft_logits, draft_logits, logits)
    key, temperature = make_key(n), torch.ones(n, dtype=torch.float64)
    target, draft = Distribution.of(logits, temperature), draft_distribution(draft_logits)
    drawn = recovered_draw(torch.zeros(n, dtype=torch.int64), target, draft, key)
    ids = torch.arange(width).expand(n, -1)
    # The reference takes the same normalised log-probabilities: what is tested is the difference.
    p, q = target.log_probs(ids).numpy(), draft.log_probs(ids).numpy()
    weights = np.where(q < p, -np.exp(p) * np.expm1(np.minimum(q - p, 0)), 0.0)
    for i in range(n):
        expected = reference.two_level(weights[i], **words(key, i), purpose=Purpose.RESIDUAL)
        assert agree(drawn[i], expected)


def test_equal_distributions_accept_always_and_recover_something_allowed() -> None:
    n, logits = 50, make_logits(50, 3000, 7)
    logits[:, :2000] = -torch.inf
    target = Distribution.of(logits, torch.ones(n, dtype=torch.float64))
    draft, key = draft_distribution(logits), make_key(n)
    x = draw_draft(logits, key, Purpose.DRAFT)
    assert accept(x, target, draft, key, 0).all()
    assert (recovered_draw(x, target, draft, key) >= 2000).all()
    one = torch.full((n, 3000), -torch.inf)
    one[:, 2500] = 1.0
    sure = Distribution.of(one, torch.ones(n, dtype=torch.float64))
    x = torch.full((n,), 2500)
    assert (recovered_draw(x, sure, None, key) == 2500).all()


def test_a_greedy_target_accepts_its_highest_token_only() -> None:
    n, logits = 8, make_logits(8, 300, 8)
    highest = logits.argmax(1)
    x = torch.where(torch.arange(n) % 2 == 0, highest, (highest + 1) % 300)
    target = Distribution.of(logits, torch.zeros(n, dtype=torch.float64))
    draft = draft_distribution(make_logits(n, 300, 9))
    assert accept(x, target, draft, make_key(n), 0).tolist() == [True, False] * 4
    for q in (None, draft):
        assert torch.equal(recovered_draw(x, target, q, make_key(n)), highest)


def test_a_cut_target_never_keeps_or_recovers_what_is_cut() -> None:
    n, logits, key = 300, make_logits(300, 500, 10, scale=0.5).round(decimals=1), make_key(300)
    temperature, ones = torch.ones(n, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    last = cut(logits, temperature, torch.full((n,), 20), ones, torch.full_like(ones, -torch.inf))
    kept = last.keeps(logits, torch.arange(500))
    assert (kept.sum(1) == 20).all()
    target, draft = Distribution.of(logits, temperature, last), draft_distribution(logits)
    x = draw_draft(logits, key, Purpose.DRAFT)
    inside = kept.gather(1, x[:, None])[:, 0]
    assert not accept(x, target, draft, key, 0)[~inside].any()
    for q in (draft, None):
        recovered = recovered_draw(x, target, q, key)
        assert kept.gather(1, recovered[:, None]).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_row_stays_in_range_and_alone(bad: float) -> None:
    n, width = 3, 1500
    logits, draft_logits, key = make_logits(n, width, 1), make_logits(n, width, 2), make_key(n)
    x, ones = torch.tensor([3, 4, 1499]), torch.ones(n, dtype=torch.float64)

    def tokens() -> list[Tensor]:
        target, draft = Distribution.of(logits, ones), draft_distribution(draft_logits)
        return [
            draw_draft(logits, key, Purpose.DRAFT),
            recovered_draw(x, target, None, key),
            recovered_draw(x, target, draft, key),
        ]

    clean = tokens()
    logits[1, 1200:] = bad
    for before, after in zip(clean, tokens(), strict=True):
        assert torch.equal(before[::2], after[::2])
        assert 0 <= int(after[1]) < width


def speculate(
    logits: Tensor, draft_logits: Tensor, last: Cut | None, n: int, *, shared: bool = False
) -> Tensor:
    """One speculated token a row: drafted, then accepted or recovered. int64 [n]."""
    key = NoiseKey(torch.arange(n), torch.full((n,), 9), torch.zeros(n, dtype=torch.int64))
    ones = torch.ones(n, dtype=torch.float64)
    target = Distribution.of(logits.expand(n, -1), ones, last)
    draft = draft_distribution(draft_logits.expand(n, -1))
    x = draw_draft(draft_logits.expand(n, -1), key, Purpose.DRAFT)
    recovered = recovered_draw(x, target, draft, key)
    if shared:  # the draft's own noise again
        p, q = softmax(logits)[0], softmax(draft_logits)[0]
        weights = torch.tensor(np.maximum(p - q, 0.0)).log().float().expand(n, -1)
        recovered = race(weights, tile_masses(weights, ones), ones, key, Purpose.DRAFT)
    return torch.where(accept(x, target, draft, key, 0), x, recovered)


def p_value(tokens: Tensor, p: np.ndarray) -> float:
    observed = np.bincount(tokens.numpy(), minlength=len(p))
    assert observed[p == 0].sum() == 0
    return float(stats.chisquare(observed[p > 0], p[p > 0] * len(tokens)).pvalue)


@pytest.mark.parametrize("filtered", [True, False])
def test_the_output_has_the_distribution_of_the_target(filtered: bool) -> None:
    n, logits, draft_logits = 10_000, make_logits(1, 12, 20, 1.0), make_logits(1, 12, 21, 1.0)
    p = softmax(logits)[0]
    last = None
    if filtered:
        order = logits[0].argsort(descending=True)
        last = Cut(logits[0, order[7]].expand(n), order[7].expand(n))
        p[order[8:].numpy()] = 0.0
        p /= p.sum()
    tokens = speculate(logits, draft_logits, last, n)
    assert p_value(tokens, p) > FALSE_ALARM


def test_a_stream_shared_by_draft_and_residual_is_found() -> None:
    n, logits, draft_logits = 10_000, make_logits(1, 12, 20, 1.0), make_logits(1, 12, 21, 1.0)
    tokens = speculate(logits, draft_logits, None, n, shared=True)
    assert p_value(tokens, softmax(logits)[0]) < FALSE_ALARM
