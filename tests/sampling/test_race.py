"""The two-level race against the float64 race of the reference, fed the same Philox words.

Tokens are equal wherever the reference's best two keys differ by more than the float32 error of
two tile masses, 2 * `MASS_ERROR` = 2^-17. At most that share of draws may be excused (see
`sampling.noise`): among the 200 here one would be with odds of 0.0015, so none may be. Seeds are
fixed, and with them every outcome here; a check of counts would have had odds of 1e-8
(`checks.ODDS`) of failing by chance when its seed was chosen.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling import noise, race, reference
from sampling.noise import LEVEL_TILE, LEVEL_TOKEN, TILE, NoiseKey, Purpose
from sampling.race import MASS_ERROR, Cut, TileMasses, greedy, log_sum_exp, tile_masses
from sampling.selftest import checks
from sampling.selftest.paths import Draws, race_draws
from sampling.selftest.tails import CASES, TILES, TOKENS, TailCase
from tests.sampling.steps import make_logits

CPU = torch.device("cpu")
SIZES = (1, 7, 111, 8193, 32_768, 151_936)
TEMPERATURES = (1.0, 0.3, 0.01, 1.7, 10.0, 1e-8, 100.0)
N, NUM_DRAWS, SEED = len(TEMPERATURES), 4_000, 3


def make_key(n: int) -> NoiseKey:
    """Noise keys with seeds of either sign and at the bounds of int64."""
    seeds = [5, -5, 2**63 - 1, -(2**63), 2**40, -1, 0] * (n // 7 + 1)
    return NoiseKey(torch.tensor(seeds[:n]), torch.arange(n) * 3, torch.arange(n) % 4)


def run(logits: Tensor, temperature: Tensor, key: NoiseKey, cut: Cut | None = None) -> Tensor:
    stats = tile_masses(logits, temperature, cut)
    return race.race(logits, stats, temperature, key, Purpose.TARGET, cut)


def expect(logits: Tensor, temperature: Tensor, key: NoiseKey) -> list[reference.Draw]:
    return [
        reference.race(
            logits[i].double().numpy(),
            temperature=float(temperature[i]),
            seed=int(key.seeds[i]),
            position=int(key.positions[i]),
            choice=int(key.choices[i]),
            purpose=Purpose.TARGET,
        )
        for i in range(len(logits))
    ]


def assert_equal(tokens: Tensor, expected: list[reference.Draw]) -> None:
    """Assert that every token is equal, and that no row is so close that it would be excused."""
    assert min(draw.margin for draw in expected) > 2 * MASS_ERROR
    assert tokens.tolist() == [draw.token_id for draw in expected]


def spread(logits: Tensor) -> Tensor:
    """Scale rows so that their distribution at their temperature is that of normal logits."""
    return logits * torch.tensor(TEMPERATURES)[: len(logits), None].clamp(max=1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", SIZES)
def test_tokens_equal_the_float64_race(size: int, dtype: torch.dtype) -> None:
    logits = spread(make_logits(N, size, seed=size)).to(dtype).float()
    logits[3, size // 2 : size // 2 + size // 3] = -torch.inf
    temperature = torch.tensor(TEMPERATURES, dtype=torch.float64)
    key = make_key(N)
    assert_equal(run(logits, temperature, key), expect(logits, temperature, key))


def test_a_small_temperature_over_small_gaps_is_a_race_too() -> None:
    logits = make_logits(40, 300, seed=1, scale=1e-8)
    temperature, key = torch.full((40,), 1e-8, dtype=torch.float64), make_key(40)
    tokens = run(logits, temperature, key)
    assert_equal(tokens, expect(logits, temperature, key))
    assert (tokens != logits.argmax(1)).sum() > 20


def test_every_part_of_the_key_counts() -> None:
    logits, key, ones = torch.zeros(N, 8193), make_key(N), torch.ones(N, dtype=torch.float64)
    expected = expect(logits, ones, key)
    assert_equal(run(logits, ones, key), expected)
    stats = tile_masses(logits, ones)
    others = [run(logits, ones, key._replace(**{part: column + 1})) for part, column in named(key)]
    others += [
        race.race(logits, stats, ones, key, purpose) for purpose in set(Purpose) - {Purpose.TARGET}
    ]
    for tokens in others:
        assert all(
            int(token) != draw.token_id for token, draw in zip(tokens, expected, strict=True)
        )


def named(key: NoiseKey) -> list[tuple[str, Tensor]]:
    return [("seeds", key.seeds // 2), ("positions", key.positions), ("choices", key.choices)]


def test_keys_are_compared_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    def close(key: NoiseKey, first: Tensor | int, count: int, stream_id: int) -> Tensor:
        drawn = torch.ones(1, count, dtype=torch.float64)
        drawn[0, 2] -= 1e-15  # float32 would take it for a tie, and the first would win
        return drawn

    monkeypatch.setattr(race, "exponentials", close)
    logits, one = torch.zeros(1, 4 * TILE), torch.ones(1, dtype=torch.float64)
    assert run(logits, one, make_key(1)).item() == 2 * TILE + 2


@pytest.mark.parametrize("size", [7, 8193])
def test_strides_do_not_matter(size: int) -> None:
    logits, temperature, key = make_logits(6, size), torch.ones(6, dtype=torch.float64), make_key(6)
    tokens, highest = run(logits, temperature, key), greedy(logits)
    wide = torch.full((6, size + 77), torch.nan)
    wide[:, 13 : 13 + size] = logits
    alternate = torch.full((12, size + 5), torch.inf)
    alternate[::2, :size] = logits
    for view in (wide[:, 13 : 13 + size], alternate[::2, :size]):
        assert view.stride(0) != size
        assert torch.equal(run(view, temperature, key), tokens)
        assert torch.equal(greedy(view), highest)
    once = logits[:1].expand(6, -1)
    assert torch.equal(run(once, temperature, key), run(once.clone(), temperature, key))


def test_a_cut_leaves_the_race_among_the_kept() -> None:
    logits = make_logits(30, 5000, scale=1.0).round(decimals=1)  # ties at every threshold
    temperature, key = torch.linspace(0.3, 2.0, 30, dtype=torch.float64), make_key(30)
    thresholds = torch.linspace(-1.0, 2.0, 30).round(decimals=1)
    cut = Cut(thresholds, torch.arange(30) * 170)
    kept = (logits > thresholds[:, None]) | (
        (logits == thresholds[:, None]) & (torch.arange(5000) <= cut.last_ids[:, None])
    )
    masked = logits.masked_fill(~kept, -torch.inf)
    tokens = run(logits, temperature, key, cut)
    assert_equal(tokens, expect(masked, temperature, key))
    assert kept.gather(1, tokens[:, None]).all()


def test_tile_stats_lie_within_the_derived_error() -> None:
    logits = torch.cat((make_logits(20, 8193, scale=3.0), make_logits(20, 8193, scale=0.01)))
    temperature = torch.logspace(-2, 2, 40, dtype=torch.float64)
    stats = tile_masses(logits, temperature)
    padded = torch.nn.functional.pad(logits, (0, 9 * TILE - 8193), value=-torch.inf)
    tiles = padded.view(40, 9, TILE).double()
    assert torch.equal(stats.maxima.double(), tiles.amax(2))
    exact = ((tiles - tiles.amax(2, keepdim=True)) / temperature[:, None, None]).exp().sum(2)
    error = (stats.masses.double() / exact - 1).abs().max()
    assert 0.0 < float(error) < MASS_ERROR
    whole = (logits.double() / temperature[:, None]).logsumexp(1)
    torch.testing.assert_close(log_sum_exp(stats, temperature).double(), whole)


def test_a_masked_tile_has_no_mass_and_never_wins() -> None:
    logits = make_logits(200, 4 * TILE)
    logits[:, TILE : 3 * TILE] = -torch.inf
    temperature = torch.ones(200, dtype=torch.float64)
    assert (tile_masses(logits, temperature).masses[:, 1:3] * 0.0 == 0.0).all()
    tile = run(logits, temperature, make_key(200)) // TILE
    assert set(tile.tolist()) == {0, 3}


def test_a_mask_holds_at_any_temperature() -> None:
    """From T = 1e46 on 1 / T is 0 in float32, where a mask's -inf would become NaN."""
    logits = make_logits(3, 2 * TILE)
    logits[:, TILE + 5 : TILE + 9] = -torch.inf
    temperature = torch.tensor([1e30, 1e46, 1e300], dtype=torch.float64)
    # No gap of these logits, divided by T, changes an exponential from 1.
    assert tile_masses(logits, temperature).masses.tolist() == [[TILE, TILE - 4]] * 3


@pytest.mark.parametrize("ids", [[0, 1], [1023, 1024], [5, 4000], [4095, 4999], range(5000)])
def test_greedy_takes_the_lowest_id_among_equals(ids: list[int]) -> None:
    logits = torch.full((2, 5000), -1.0)
    logits[0, list(ids)] = 0.0
    logits[1, list(ids)] = -0.0
    logits[1, ids[-1]] = 0.0  # equal to -0.0
    assert greedy(logits).tolist() == [ids[0]] * 2


@pytest.mark.parametrize("size", SIZES)
def test_greedy_equals_a_plain_scan(size: int) -> None:
    logits = make_logits(6, size, scale=0.5).bfloat16().float()
    expected = [int(np.flatnonzero(x == x.max())[0]) for x in logits.numpy()]
    assert greedy(logits).tolist() == expected


def distinct(
    logits: Tensor,
    *,
    seeds: Tensor | int = 1,
    positions: Tensor | int = 1,
    choices: Tensor | int = 1,
) -> Tensor:
    """Draw `NUM_DRAWS` tokens by noise keys that differ in one of their parts."""
    parts = [torch.as_tensor(part).expand(NUM_DRAWS) for part in (seeds, positions, choices)]
    stats = tile_masses(logits[None], torch.ones(1, dtype=torch.float64))
    stats = TileMasses(*(column.expand(NUM_DRAWS, -1) for column in stats))
    ones = torch.ones(NUM_DRAWS, dtype=torch.float64)
    return race.race(logits.expand(NUM_DRAWS, -1), stats, ones, NoiseKey(*parts), Purpose.TARGET)


def by_seeds(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
    return distinct(logits, seeds=positions - NUM_DRAWS // 2)


def by_high_seeds(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
    return distinct(logits, seeds=positions * 2**48 - 2**62)


def by_choices(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
    return distinct(logits, choices=positions)


def by_choice_modulo_1000(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
    return distinct(logits, choices=positions % 1000)


@pytest.mark.parametrize("shape", checks.shapes(), ids=lambda shape: shape.name)
def test_frequencies(shape: checks.Shape) -> None:
    """Chi-square over positions; odds 1e-8 each."""
    assert checks.frequencies("", race_draws(CPU), shape, 2 * NUM_DRAWS, SEED).passed


@pytest.mark.parametrize("draw", [by_seeds, by_high_seeds, by_choices])
def test_seeds_and_choices_are_as_good_as_positions(draw: Draws) -> None:
    """Chi-square over keys that differ elsewhere; odds 1e-8 each."""
    assert checks.frequencies("", draw, checks.shapes()[3], NUM_DRAWS, SEED).passed


def uniform_masses(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
    """Draw as if all tiles had the same mass."""
    flat = tile_masses(logits[None], torch.ones(1, dtype=torch.float64))
    stats = TileMasses(*(torch.ones_like(column).expand(NUM_DRAWS, -1) for column in flat))
    ones, zeros = torch.ones(NUM_DRAWS, dtype=torch.float64), torch.zeros_like(positions)
    key = NoiseKey(zeros + seed, positions, zeros)
    return race.race(logits.expand(NUM_DRAWS, -1), stats, ones, key, Purpose.TARGET)


def warmer(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
    return race_draws(CPU)(logits / 1.1, positions, seed)


@pytest.mark.parametrize(
    ("draw", "shape"),
    [
        (uniform_masses, 2),
        (warmer, 1),
        (warmer, 2),
        (by_choice_modulo_1000, 0),
    ],
)
def test_wrong_frequencies_are_found(draw: Draws, shape: int) -> None:
    assert not checks.frequencies("", draw, checks.shapes()[shape], NUM_DRAWS, SEED).passed


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_race_has_its_tail(case: TailCase) -> None:
    assert checks.replay("", "", race_draws(CPU), case, Purpose.TARGET).passed


Noise = Callable[[NoiseKey, Tensor | int, int, Tensor | int], Tensor]


def float32_noise(level: int) -> Noise:
    """Exponentials of 24-bit uniforms at one level, none of which lies below 2^-24."""

    def degraded(key: NoiseKey, first: Tensor | int, count: int, stream_id: Tensor | int) -> Tensor:
        u = noise.uniforms(key, first, count, stream_id)
        if int(stream_id) & 1 == level:
            u = ((u * 2.0**24).floor() + 1.0) * 2.0**-24
        return -torch.log1p(-u.clamp(max=noise.MAX_UNIFORM))

    return degraded


def shared_levels(
    key: NoiseKey, first: Tensor | int, count: int, stream_id: Tensor | int
) -> Tensor:
    """Use one stream for both levels: the tiles' noise decides tile 0's tokens again."""
    return noise.exponentials(key, first, count, int(stream_id) & ~1)


@pytest.mark.parametrize(("case", "level"), [(TOKENS, LEVEL_TOKEN), (TILES, LEVEL_TILE)])
def test_float32_noise_at_either_level_loses_the_tail(
    case: TailCase, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race, "exponentials", float32_noise(level))
    result = checks.replay("", "", race_draws(CPU), case, Purpose.TARGET)
    assert not result.passed
    assert result.statistic.startswith("0 of ")


def test_a_stream_shared_by_the_levels_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tile 0 then wins only where its token 0 does, never with token 1.

    Chi-square, odds 1e-8 where all is well.
    """
    shape = checks.Shape("two tiles", torch.full((TILE + 1,), -torch.inf))
    shape.logits[[0, 1, TILE]] = torch.tensor([1.0, 1.0, 2.0]).log()
    assert checks.frequencies("", race_draws(CPU), shape, 500, SEED).passed
    monkeypatch.setattr(race, "exponentials", shared_levels)
    assert not checks.frequencies("", race_draws(CPU), shape, 500, SEED).passed
