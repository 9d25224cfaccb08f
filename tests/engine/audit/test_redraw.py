"""Tokens drawn again: honest ones are those derived, errors of logits are bounded, others fail."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from msgspec import structs

from engine.arrays import Float32Array
from engine.audit.distribution import bounds, edited, kept
from engine.audit.drawn import DrawnChoice, Redrawn, Reported
from engine.audit.redraw import redraw
from sampling import reference
from sampling.noise import Purpose
from sampling.params import SamplingParams
from website.noise_vectors import DRAWS, logits_of, vectors

VOCAB = 2600  # three tiles, the last one short


class Given:
    """A source that gives the same logits for every position, or one row a position."""

    dtype = "float32"

    def __init__(self, *rows: Float32Array) -> None:
        self.vocab_size, self.max_model_len = len(rows[0]), 99
        self._rows = rows

    def logits(self, token_ids: list[int], start: int) -> Iterator[Float32Array]:
        for i in range(len(token_ids) - start):
            yield self._rows[i % len(self._rows)]


def one(
    raw: Float32Array, params: SamplingParams, token: int, position: int = 3, choice: int = 0
) -> Redrawn:
    drawn = DrawnChoice(
        line=1, index=0, choice=choice, prompt=[1] * position, output=[token], params=params
    )
    return redraw(drawn, Given(raw))[0]


PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.5, top_k=40),
    SamplingParams(temperature=1.2, top_p=0.7),
    SamplingParams(temperature=1.2, min_p=0.05),
    SamplingParams(temperature=1.4, top_k=60, top_p=0.9, min_p=0.02),
]


@pytest.mark.parametrize("index", range(len(DRAWS)))
def test_the_vectors_of_the_contract_are_derived(index: int) -> None:
    case = vectors()["draws"][index]
    own = {
        name: case[name]
        for name in SamplingParams.__struct_fields__
        if name in case and name not in ("seed", "logit_bias")
    }
    for name in ("allowed_token_ids", "stop_token_ids"):
        if name in own:
            own[name] = tuple(own[name])
    own["bad_words"] = tuple(map(tuple, own.get("bad_words", ())))
    bias = {int(token): value for token, value in case.get("logit_bias", {}).items()}
    params = SamplingParams(seed=int(case["seed"]), logit_bias=bias, **own)
    drawn = DrawnChoice(
        line=1,
        index=0,
        choice=case["choice"],
        prompt=case["prompt"],
        output=[*case["output"], case["token"]],
        params=params,
    )
    raw = logits_of(case["size"], case["multiplier"]).numpy()
    last = redraw(drawn, Given(raw))[-1]
    assert (last.derived, last.noise) == (case["token"], 0.0)


@pytest.mark.parametrize("params", PARAMS)
def test_what_logits_that_are_off_draw_is_explained_by_no_more_than_they_are_off(
    params: SamplingParams,
) -> None:
    """It is proved for any error, so that none may break it; enough tokens differ to tell."""
    generator, num_changed, error = np.random.default_rng(7), 0, 0.5
    for seed in range(40):
        served = (generator.normal(size=VOCAB) * 2.5).astype(np.float32)
        off = generator.choice([-error, error], VOCAB)
        audited = (served + off).astype(np.float32)
        own = structs.replace(params, seed=seed)
        token = one(served, own, 0).derived
        found = one(audited, own, token)
        num_changed += found.derived != token
        assert found.noise <= error * (1 + 1e-6)
        assert (found.noise > 0) == (found.derived != token)
    assert num_changed >= 5


def test_a_token_needs_the_error_that_makes_it_the_winner() -> None:
    """Two tokens: the other one wins once logits are off by half the gap of its key, times T."""
    params = SamplingParams(temperature=0.5, seed=3)
    raw = np.array([1.0, 0.2], dtype=np.float32)
    drawn = one(raw, params, 0).derived
    other = one(raw, params, 1 - drawn)
    keys = [
        reference.exponential(3, token, 3, 0, 1) / np.exp(raw[token].astype(float) / 0.5)
        for token in range(2)
    ]
    assert other.noise == pytest.approx(abs(np.log(keys[0] / keys[1])) / 2 * 0.5, rel=1e-6)


@pytest.mark.parametrize("params", PARAMS)
def test_sure_and_possible_tokens_enclose_the_kept_ones(params: SamplingParams) -> None:
    generator = np.random.default_rng(8)
    for slack in (0.0, 1e-9, 0.01, 0.2, 3.0):
        scaled = generator.normal(size=500) * 2
        scaled[:40] = -np.inf
        sure, possible = bounds(scaled, params, slack)
        for _ in range(20):
            off = generator.uniform(-slack, slack, 500)
            left = kept(scaled + off, params)
            assert not (sure & ~left).any()
            assert not (left & ~possible).any()
        if slack == 0.0:
            assert (kept(scaled, params) == possible).all()


def test_small_errors_may_put_a_token_above_the_first() -> None:
    """Two logits 0.015 apart, each off by 0.01: of them top-p 0.3 keeps whichever is first."""
    sure, possible = bounds(np.array([0.0, -0.015]), SamplingParams(top_p=0.3), 0.01)
    assert (sure.tolist(), possible.tolist()) == ([False, False], [True, True])
    apart, far = bounds(np.array([0.0, -0.025]), SamplingParams(top_p=0.3), 0.01)
    assert (apart.tolist(), far.tolist()) == ([True, False], [True, False])


def test_a_masked_token_is_explained_by_nothing() -> None:
    raw = np.zeros(50, dtype=np.float32)
    params = SamplingParams(seed=1, allowed_token_ids=(4, 5, 6))
    assert one(raw, params, 7).noise == np.inf
    greedy = SamplingParams(temperature=0.0, allowed_token_ids=(4, 5, 6))
    assert one(raw, greedy, 7).noise == np.inf


def test_greedy_takes_the_lowest_of_equals_and_half_a_gap_explains_another() -> None:
    raw = np.array([0.0, 2.0, 2.0, 1.5], dtype=np.float32)
    greedy = SamplingParams(temperature=0.0)
    assert one(raw, greedy, 1).noise == 0.0
    assert 0.0 < one(raw, greedy, 2).noise < 1e-300
    assert one(raw, greedy, 3).noise == 0.25


def test_edits_follow_the_order_of_the_contract() -> None:
    """Bias before masks before penalties, words only after their beginning."""
    raw = np.array([1.0, -1.0, 2.0, 0.5, 3.0], dtype=np.float32)
    params = SamplingParams(
        logit_bias={1: 4.0, 4: -5.0},
        bad_words=((2, 3),),
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
    )
    values = edited(raw, params, [1, 4], [0, 0, 2])
    assert values.tolist() == [1 / 2 - 0.5 - 0.5, 1.5, 2 / 2 - 0.25 - 0.5, -np.inf, -4.0]
    assert edited(raw, params, [1, 4], [2, 0])[3] == 0.5


@pytest.mark.parametrize("change", [{"seed": 12}, {"temperature": 0.5}, {"top_k": 2}])
def test_other_parameters_derive_other_tokens(change: dict[str, float]) -> None:
    generator = np.random.default_rng(9)
    rows = [(generator.normal(size=VOCAB) * 2).astype(np.float32) for _ in range(20)]
    params = SamplingParams(seed=11)
    honest = DrawnChoice(line=1, index=0, choice=1, prompt=[1, 2], output=[0] * 20, params=params)
    output = [token.derived for token in redraw(honest, Given(*rows))]
    honest = structs.replace(honest, output=output)
    assert [token.noise for token in redraw(honest, Given(*rows))] == [0.0] * 20
    other = structs.replace(honest, params=structs.replace(params, **change))
    assert sum(token.noise > 0.01 for token in redraw(other, Given(*rows))) > 5
    moved = structs.replace(honest, choice=0)
    assert sum(token.noise > 0.01 for token in redraw(moved, Given(*rows))) > 5


def test_logprobs_are_those_of_what_is_left() -> None:
    raw = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    found = one(raw, SamplingParams(seed=1, top_k=2), 1)
    assert found.logprob == pytest.approx(np.log(0.3 / 0.8), abs=1e-6)
    assert found.gap == 0.0


@pytest.mark.parametrize(
    ("reported", "gap"),
    [
        ([(1, np.log(0.3))], 0.0),
        ([(1, np.log(0.3)), (0, np.log(0.5) - 0.25)], 0.25),
        ([(1, np.log(0.3)), (4, -9999.0), (4, -np.inf)], 0.0),
        ([(4, -20.0)], 9979.0),
        ([], 0.0),
    ],
)
def test_reported_logprobs_are_compared_with_the_raw_ones(reported: Reported, gap: float) -> None:
    with np.errstate(divide="ignore"):
        raw = np.log(np.array([0.5, 0.3, 0.15, 0.05, 0.0], dtype=np.float32)) + np.float32(1.5)
    drawn = DrawnChoice(
        line=1,
        index=0,
        choice=0,
        prompt=[1],
        output=[1],
        params=SamplingParams(seed=1, temperature=0.5, top_k=2),
        logprobs=[reported],
    )
    assert redraw(drawn, Given(raw))[0].gap == pytest.approx(gap, abs=1e-6)


def test_the_reference_race_is_the_same() -> None:
    generator = np.random.default_rng(10)
    for position in range(3, 23):
        raw = (generator.normal(size=VOCAB) * 2).astype(np.float32)
        wanted = reference.race(
            raw.astype(np.float64),
            temperature=0.7,
            seed=-4,
            position=position,
            choice=2,
            purpose=Purpose.TARGET,
        )
        params = SamplingParams(temperature=0.7, seed=-4)
        assert one(raw, params, 0, position, choice=2).derived == wanted.token_id
