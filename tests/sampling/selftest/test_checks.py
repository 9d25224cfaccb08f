"""The checks of `tailrace verify` fail samplers that are wrong in the ways known from elsewhere.

Replays and comparisons are exact. Counts here use fixed seeds, so their outcome is fixed; each
had odds of 1e-8 (`checks.ODDS`) of failing by chance when its seed was chosen, and the wrong
ones pass with odds far below that.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from sampling import noise, race
from sampling.noise import LEVEL_TILE, LEVEL_TOKEN, NoiseKey, Purpose
from sampling.params import SamplingParams
from sampling.sampler import SamplerConfig
from sampling.selftest import checks
from sampling.selftest.checks import Result
from sampling.selftest.paths import (
    Call,
    Draws,
    kept_and_chosen,
    race_draws,
    sampler_draws,
    sampler_step,
)
from sampling.selftest.speculative_paths import (
    DRAFT_DEPTH,
    accept_draws,
    draft_draws,
    recovered_draws,
    recovered_from_logits_draws,
    speculated_draws,
)
from sampling.selftest.tails import CASES, MANY, TILES, TOKENS, TailCase, wins
from sampling.speculative import draws
from sampling.speculative.draws import Distribution

CPU, CONFIG, NUM_DRAWS, SEED = torch.device("cpu"), SamplerConfig(), 6_000, 5

Noise = Callable[[NoiseKey, Tensor | int, int, Tensor | int], Tensor]


def float32_exponentials(level: int) -> Noise:
    """Exponentials as a float32 generator makes them at one level: none lies below 2^-24."""

    def degraded(key: NoiseKey, first: Tensor | int, count: int, stream_id: Tensor | int) -> Tensor:
        u = noise.uniforms(key, first, count, stream_id)
        if int(torch.as_tensor(stream_id).flatten()[0]) & 1 == level:
            u = ((u * 2.0**24).floor() + 1.0) * 2.0**-24
        return -torch.log1p(-u.clamp(max=noise.MAX_UNIFORM))

    return degraded


@pytest.mark.parametrize("case", CASES)
def test_the_sampler_has_its_tail(case: TailCase) -> None:
    draw = sampler_draws(CONFIG, CPU)
    assert checks.replay("", "", draw, case, Purpose.TARGET).passed


@pytest.mark.parametrize(("case", "level"), [(TOKENS, LEVEL_TOKEN), (TILES, LEVEL_TILE)])
def test_float32_noise_at_either_level_of_the_sampler_fails(
    case: TailCase, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race, "exponentials", float32_exponentials(level))
    result = checks.replay("", "", sampler_draws(CONFIG, CPU), case, Purpose.TARGET)
    assert not result.passed
    assert result.statistic.startswith("0 of ")


@pytest.mark.parametrize(("case", "level"), [(TOKENS, LEVEL_TOKEN), (TILES, LEVEL_TILE)])
@pytest.mark.parametrize(
    ("maker", "purpose"),
    [
        (draft_draws, Purpose.DRAFT),
        (recovered_draws, Purpose.RESIDUAL),
        (recovered_from_logits_draws, Purpose.RESIDUAL),
    ],
)
def test_float32_noise_in_speculation_fails(
    maker: Callable[[SamplerConfig, torch.device], Draws],
    purpose: Purpose,
    case: TailCase,
    level: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert checks.replay("", "", maker(CONFIG, CPU), case, purpose).passed
    for module in (race, draws):  # drafts race as the target's tokens do
        monkeypatch.setattr(module, "exponentials", float32_exponentials(level))
    assert not checks.replay("", "", maker(CONFIG, CPU), case, purpose).passed


@pytest.mark.parametrize("lowest", [0.0, 2.0**-24])
def test_a_float32_acceptance_uniform_fails(lowest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.replay_acceptance("", "", accept_draws(CONFIG, CPU)).passed

    def degraded(key: NoiseKey, first: Tensor | int, count: int, stream_id: Tensor | int) -> Tensor:
        return (noise.uniforms(key, first, count, stream_id) * 2.0**24).floor() * 2.0**-24 + lowest

    monkeypatch.setattr(draws, "uniforms", degraded)
    assert not checks.replay_acceptance("", "", accept_draws(CONFIG, CPU)).passed


def test_wins_are_as_many_as_probability_says() -> None:
    # 24 to 39 of 32.8 to 34.4 each: the list itself passes the count it stands for.
    for case, purpose in ((MANY, Purpose.TARGET), (TOKENS, Purpose.DRAFT), (TILES, Purpose.TARGET)):
        positions, tokens = wins(case, purpose)
        assert 12 < len(positions) < 70
        assert (positions < case.draws).all()
        assert (case.logits()[tokens] == -case.gap).all()


def test_the_count_of_tail_wins_fails_a_sampler_without_a_tail() -> None:
    def leader_only(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
        return torch.zeros_like(positions)

    assert not checks.tail_count("", leader_only, MANY, MANY.draws, SEED).passed
    few = checks.tail_count("", race_draws(CPU), MANY, 10_000, SEED)
    assert few.passed
    assert few.statistic.endswith("of 3.3")


def test_frequencies_pass_and_fail() -> None:
    draw = sampler_draws(CONFIG, CPU)

    def warmer(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
        return draw(logits / 1.1, positions, seed)

    for shape in (checks.shapes()[2], checks.peaked()):
        assert checks.frequencies("", draw, shape, NUM_DRAWS, SEED).passed
        assert not checks.frequencies("", warmer, shape, NUM_DRAWS, SEED).passed


def filtered(top_k: int) -> Result:
    params = SamplingParams(temperature=0.8, top_k=top_k, top_p=1.0, min_p=0.01, seed=0)
    return checks.filtered_frequencies("", sampler_draws(CONFIG, CPU, params), NUM_DRAWS, SEED)


def test_filters_pass_and_an_off_by_one_fails() -> None:
    right = sampler_draws(CONFIG, CPU, checks.FILTERED)
    assert checks.filtered_frequencies("", right, NUM_DRAWS, SEED).passed
    assert not filtered(checks.FILTERED.top_k + 1).passed
    tied = sampler_draws(CONFIG, CPU, checks.TIED_K)
    assert checks.tied_frequencies("", tied, NUM_DRAWS, SEED).passed
    for wrong in (-1, 1):
        params = SamplingParams(top_k=checks.TIED_K.top_k + wrong, seed=0)
        draw = sampler_draws(CONFIG, CPU, params)
        assert not checks.tied_frequencies("", draw, NUM_DRAWS, SEED).passed


@pytest.mark.parametrize("one_hot", [True, False])
def test_speculation_keeps_the_distribution(one_hot: bool) -> None:
    draw = speculated_draws(CONFIG, CPU, one_hot=one_hot)
    assert checks.speculated_frequencies("", draw, NUM_DRAWS, SEED).passed


def test_a_stream_shared_by_draft_and_residual_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    recover = draws.recovered_draw

    def shared(purpose: Purpose, level: int = LEVEL_TILE, depth: int = 0) -> int:
        if purpose is Purpose.RESIDUAL:
            return noise.stream(Purpose.DRAFT, level, DRAFT_DEPTH)
        return noise.stream(purpose, level, depth)

    def at_the_draft(x: Tensor, p: Distribution, q: Distribution | None, key: NoiseKey) -> Tensor:
        return recover(x, p, q, key._replace(positions=key.positions - DRAFT_DEPTH))

    monkeypatch.setattr(draws, "stream", shared)
    monkeypatch.setattr(draws, "recovered_draw", at_the_draft)
    draw = speculated_draws(CONFIG, CPU, one_hot=False)
    assert not checks.speculated_frequencies("", draw, NUM_DRAWS, SEED).passed


def test_greedy_ties_pass_and_fail() -> None:
    greedy = SamplingParams(temperature=0.0)
    assert checks.greedy_ties("", sampler_draws(CONFIG, CPU, greedy)).passed

    def highest_id(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
        return len(logits) - 1 - logits.flip(0).argmax().expand(len(positions))

    assert not checks.greedy_ties("", highest_id).passed


def test_noise_keyed_by_slot_fails() -> None:
    step = sampler_step(CONFIG, CPU, num_slots=checks.NUM_REQUESTS)
    assert checks.slot_invariance("", step).passed

    def by_slot(calls: Sequence[Call]) -> list[int]:
        return step([call._replace(seed=call.slot) for call in calls])

    def by_order(calls: Sequence[Call]) -> list[int]:
        return step([call._replace(seed=i) for i, call in enumerate(calls)])

    assert not checks.slot_invariance("", by_slot).passed
    assert not checks.slot_invariance("", by_order).passed


def test_constrained_draws_pass_and_the_mask_of_another_token_fails() -> None:
    draw = sampler_draws(CONFIG, CPU, checks.MASKED, allowed=checks.MASK_IDS)
    assert checks.masked_frequencies("", draw, NUM_DRAWS, SEED).passed
    late = tuple(token + 1 for token in checks.MASK_IDS)
    for allowed in (None, checks.MASK_IDS[:20], late):
        wrong = sampler_draws(CONFIG, CPU, checks.MASKED, allowed=allowed)
        assert not checks.masked_frequencies("", wrong, NUM_DRAWS, SEED).passed


@pytest.mark.parametrize("one_hot", [True, False])
def test_constrained_speculation_passes_and_a_draft_never_masked_fails(one_hot: bool) -> None:
    allowed = checks.FEW_MASK_IDS
    draw = speculated_draws(CONFIG, CPU, one_hot=one_hot, allowed=allowed)
    assert checks.constrained_frequencies("", draw, NUM_DRAWS, SEED).passed
    unmasked = speculated_draws(CONFIG, CPU, one_hot=one_hot)
    assert not checks.constrained_frequencies("", unmasked, NUM_DRAWS, SEED).passed


def test_kept_logprobs_pass_and_those_of_another_temperature_fail() -> None:
    assert checks.kept_logprobs("", partial(kept_and_chosen, CONFIG, CPU)).passed

    def at_one(params: SamplingParams, logits: Tensor, allowed: Sequence[int] | None) -> Any:
        other = msgspec.structs.replace(params, temperature=1.0)
        token, chosen, _ = kept_and_chosen(CONFIG, CPU, params, logits, allowed)
        return token, chosen, kept_and_chosen(CONFIG, CPU, other, logits, allowed)[2]

    assert not checks.kept_logprobs("", at_one).passed
