"""The filters in plain torch against a full sort in float64, and by hand.

Only the two chi-square tests are random in outcome: seeds are fixed, and each had odds of 1e-8
(`checks.ODDS`) of failing by chance when its seed was chosen.
"""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling import reference
from sampling.filters.plain import MAX_SELECTED, cut
from sampling.noise import Purpose
from sampling.params import SamplingParams
from sampling.race import Cut
from sampling.sampler import SamplerConfig
from sampling.selftest import checks
from sampling.selftest.paths import sampler_draws
from sampling.selftest.tails import SEED as TAIL_SEED
from sampling.selftest.tails import TOKENS, wins
from tests.sampling.steps import Request, draw, make_logits

CPU, CONFIG = torch.device("cpu"), SamplerConfig()
NUM_DRAWS, SEED = 3_000, 4

Filters = tuple[float, int, float, float]  # temperature, top_k, top_p, min_p
Cutter = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Cut]

SINGLE = [
    (1.0, 0, 1.0, 0.0),
    (1.0, 1, 1.0, 0.0),
    (0.7, 50, 1.0, 0.0),
    (1.3, 0, 0.9, 0.0),
    (0.5, 0, 0.31, 0.0),
    (1.0, 0, 1.0, 0.07),
    (2.0, 0, 1.0, 0.9),
]
TOGETHER = [
    (0.8, 12, 0.83, 0.01),
    (1.0, 300, 0.97, 0.002),
    (1.5, 5, 0.2, 0.3),
    (3.0, MAX_SELECTED + 5, 0.999, 1e-6),
    (1e-8, 3, 0.5, 0.1),
    (100.0, 40, 0.77, 0.9),
]


def keeps(logits: Tensor, filters: list[Filters], cutter: Cutter = cut) -> Tensor:
    """The tokens that the filters keep, bool [n, vocab_size]."""
    temperature, top_k, top_p, min_p = zip(*filters, strict=True)
    last = cutter(
        logits,
        torch.tensor(temperature, dtype=torch.float64),
        torch.tensor(top_k),
        torch.tensor(top_p, dtype=torch.float64),
        torch.tensor([math.log(p) if p else -math.inf for p in min_p], dtype=torch.float64),
    )
    return last.keeps(logits, torch.arange(logits.shape[1])) & (logits > -torch.inf)


def expected(logits: Tensor, filters: list[Filters]) -> Tensor:
    """The tokens that `reference.kept` keeps, bool [n, vocab_size]."""
    rows = [
        reference.kept(
            x.double().numpy(), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
        )
        for x, (temperature, top_k, top_p, min_p) in zip(logits, filters, strict=True)
    ]
    return torch.from_numpy(np.stack(rows))


def equal(logits: Tensor, filters: list[Filters], cutter: Cutter = cut) -> bool:
    return torch.equal(keeps(logits, filters, cutter), expected(logits, filters))


@pytest.mark.parametrize("size", [1, 7, 111, 8193, 32_768])
def test_filters_equal_a_full_sort(size: int) -> None:
    filters = SINGLE + TOGETHER
    logits = make_logits(len(filters), size, seed=size)
    assert equal(logits, filters)
    logits[:, size // 3 : size // 2] = -torch.inf
    assert equal(logits, filters)


@pytest.mark.parametrize("size", [111, 8193])
def test_among_ties_the_lowest_ids_are_kept(size: int) -> None:
    # top_p is left out: whether a sum of equals reaches p is a matter of its last digit.
    filters = [(t, k, 1.0, p) for t, k, p in product((0.7, 1.0), (0, 1, 10, 100), (0.0, 0.04))]
    logits = make_logits(len(filters), size, scale=1.0).round()
    logits[0] = 0.0
    logits[1, ::2], logits[1, 1::2] = 0.0, -0.0  # equal
    assert equal(logits, filters)
    kept = keeps(logits, filters)
    for row, (_, top_k, _, min_p) in enumerate(filters):
        if top_k and not min_p:
            assert int(kept[row].sum()) == top_k


@pytest.mark.parametrize(
    ("weights", "top_k", "top_p", "min_p", "ids"),
    [
        # top-p is a share of what top-k left: 4/7 reaches 0.5, 4/10 would not.
        ([1, 2, 3, 4], 2, 0.5, 0.0, [3]),
        ([1, 2, 3, 4], 2, 0.6, 0.0, [2, 3]),
        # ... and of what min-p left.
        ([1, 2, 3, 4], 0, 0.5, 0.6, [3]),
        ([1, 2, 3, 4], 0, 0.5, 0.0, [2, 3]),
        # min-p compares with the highest, whatever top-k leaves.
        ([1, 2, 3, 4], 3, 1.0, 0.75, [2, 3]),
        ([1, 2, 3, 4], 3, 1.0, 0.74, [2, 3]),
        ([1, 2, 3, 4], 3, 1.0, 0.76, [3]),
        ([1, 2, 3, 4], 3, 0.8, 0.45, [1, 2, 3]),
        ([1, 2, 3, 4], 3, 0.77, 0.45, [2, 3]),
        # The shortest prefix whose mass reaches p: exactly half is enough, a little more is not.
        ([1, 1, 1, 1], 0, 0.5, 0.0, [0, 1]),
        ([1, 1, 1, 1], 0, 0.5000001, 0.0, [0, 1, 2]),
        ([1, 1, 1, 1], 3, 1e-300, 0.0, [0]),
        ([1, 1, 1, 1], 0, 1.0, 1.0, [0, 1, 2, 3]),
        ([1, 1, 4, 1], 2, 1.0, 0.0, [0, 2]),
        ([1, 1, 4, 1], 9, 1.0, 0.0, [0, 1, 2, 3]),
    ],
)
def test_by_hand(
    weights: list[int], top_k: int, top_p: float, min_p: float, ids: list[int]
) -> None:
    slack = 1 - 1e-6 if min_p == 0.75 else 1.0  # log(3 / 4) is not a float32
    logits = torch.tensor([weights]).log()
    kept = keeps(logits, [(1.0, top_k, top_p, min_p * slack)])
    assert kept[0].nonzero().flatten().tolist() == ids


def test_a_row_is_cut_alike_beside_any_neighbours() -> None:
    filters = SINGLE + TOGETHER
    logits = make_logits(len(filters), 3000, scale=1.0).round(decimals=1)
    together = keeps(logits, filters)
    logits[2] = torch.nan
    logits[4] = -torch.inf
    logits[6, 7] = torch.inf
    beside_bad = keeps(logits, filters)
    for row in set(range(len(filters))) - {2, 4, 6}:
        alone = keeps(logits[row : row + 1], filters[row : row + 1])
        assert torch.equal(alone[0], together[row])
        assert torch.equal(alone[0], beside_bad[row])


def one_too_many(x: Tensor, t: Tensor, k: Tensor, p: Tensor, m: Tensor) -> Cut:
    return cut(x, t, torch.where(k > 0, k + 1, 0), p, m)


def all_of_equals(x: Tensor, t: Tensor, k: Tensor, p: Tensor, m: Tensor) -> Cut:
    last = cut(x, t, k, p, m)
    return last._replace(last_ids=torch.full_like(last.last_ids, x.shape[1]))


def top_p_first(x: Tensor, t: Tensor, k: Tensor, p: Tensor, m: Tensor) -> Cut:
    by_p, rest = cut(x, t, torch.zeros_like(k), p, m), cut(x, t, k, torch.ones_like(p), m)
    return Cut(torch.maximum(by_p.thresholds, rest.thresholds), rest.last_ids)


def temperature_forgotten(x: Tensor, t: Tensor, k: Tensor, p: Tensor, m: Tensor) -> Cut:
    return cut(x, torch.ones_like(t), k, p, m)


def test_wrong_filters_are_found() -> None:
    smooth = make_logits(len(TOGETHER), 8193, seed=1)
    assert equal(smooth, TOGETHER)
    assert not equal(smooth, [SINGLE[2]] * len(TOGETHER), one_too_many)
    assert not equal(smooth, TOGETHER, top_p_first)
    assert not equal(smooth, TOGETHER, temperature_forgotten)
    tied = smooth.round()
    assert equal(tied, [SINGLE[2]] * len(TOGETHER))
    assert not equal(tied, [SINGLE[2]] * len(TOGETHER), all_of_equals)


@pytest.mark.parametrize("filters", [*SINGLE, *TOGETHER])
def test_filtered_draws_equal_the_reference(filters: Filters) -> None:
    temperature, top_k, top_p, min_p = filters
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = make_logits(8, 2500, seed=2).round(decimals=2 if top_p == 1.0 else 6)
    output = draw([Request(params, seed=-i) for i in range(8)], logits)
    for i, x in enumerate(logits):
        kept = expected(x[None], [filters])[0]
        best = reference.race(
            x.masked_fill(~kept, -torch.inf).double().numpy(),
            temperature=temperature,
            seed=-i,
            position=3,
            choice=0,
            purpose=Purpose.TARGET,
        )
        assert int(output.token_ids[i]) == best.token_id


def test_filtered_frequencies() -> None:
    """Chi-square; odds 1e-8. A top-k off by one fails it."""
    right = sampler_draws(CONFIG, CPU, checks.FILTERED)
    assert checks.filtered_frequencies("", right, NUM_DRAWS, SEED).passed
    for wrong in (checks.FILTERED.top_k - 2, checks.FILTERED.top_k + 1):
        params = SamplingParams(temperature=0.8, top_k=wrong, top_p=0.999, min_p=0.01, seed=0)
        draws = sampler_draws(CONFIG, CPU, params)
        assert not checks.filtered_frequencies("", draws, NUM_DRAWS, SEED).passed


def test_tied_frequencies() -> None:
    """Chi-square over exactly k of many equals; odds 1e-8. An off-by-one fails it."""
    for top_k, passes in ((4, False), (5, True), (6, False)):
        draws = sampler_draws(CONFIG, CPU, SamplingParams(top_k=top_k, seed=0))
        assert checks.tied_frequencies("", draws, NUM_DRAWS, SEED).passed is passes


@pytest.mark.parametrize(
    "filters", [{"top_p": 1 - 1e-15}, {"min_p": 1e-12}, {"top_p": 1 - 1e-15, "min_p": 1e-12}]
)
def test_filters_that_spare_the_tail_lose_none_of_it(filters: dict[str, Any]) -> None:
    draws = sampler_draws(CONFIG, CPU, SamplingParams(seed=0, **filters))
    assert checks.replay("", "", draws, TOKENS, Purpose.TARGET).passed


def test_a_filter_that_cuts_the_tail_leaves_the_leading_token() -> None:
    positions, tokens = wins(TOKENS, Purpose.TARGET)
    low = int(tokens.sort().values[len(tokens) // 2])
    draws = sampler_draws(CONFIG, CPU, SamplingParams(seed=0, top_k=low + 1))
    drawn = draws(TOKENS.logits(), positions, TAIL_SEED)
    assert drawn[tokens <= low].tolist() == tokens[tokens <= low].tolist()
    assert (drawn[tokens > low] <= low).all()
    draws = sampler_draws(CONFIG, CPU, SamplingParams(seed=0, top_p=1 - 1e-4))
    assert not draws(TOKENS.logits(), positions, TAIL_SEED).any()
