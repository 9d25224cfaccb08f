"""The noise contract: published vectors, exact arithmetic, and streams that never meet.

Nothing here is random in outcome but the search for shared words, whose odds it states.
"""

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling import noise, reference
from sampling.noise import LEVEL_TILE, LEVEL_TOKEN, NoiseKey, Purpose, stream
from tests.sampling.exponentials import worst_error

SEEDS = (0, 1, -1, 2**31, 2**32 + 5, -(2**32) - 5, 2**63 - 1, -(2**63), 20261121)

# Random123's kat_vectors for philox4x32-10: counter, key, expected words.
ANSWERS = [
    (
        (0x00000000, 0x00000000, 0x00000000, 0x00000000),
        (0x00000000, 0x00000000),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def one_key(seed: int, position: int = 5, choice: int = 0) -> NoiseKey:
    return NoiseKey(torch.tensor([seed]), torch.tensor([position]), torch.tensor([choice]))


@pytest.mark.parametrize(("counter", "key", "expected"), ANSWERS)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert reference.philox(counter, key) == expected
    c0, c1, c2, c3, k0, k1 = (np.array([word], dtype=np.uint64) for word in (*counter, *key))
    words = noise.philox((c0, c1, c2, c3), (k0, k1))
    assert words[:, 0].tolist() == list(expected)


def test_philox_of_many_blocks_equals_one_at_a_time() -> None:
    generator = np.random.default_rng(1)
    c0, c1, c2, c3, k0, k1 = generator.integers(0, 2**32, (6, 300), dtype=np.uint64)
    words = noise.philox((c0, c1, c2, c3), (k0, k1))
    for i in range(300):
        counter = int(c0[i]), int(c1[i]), int(c2[i]), int(c3[i])
        expected = reference.philox(counter, (int(k0[i]), int(k1[i])))
        assert words[:, i].tolist() == list(expected)


def contract(seed: int, index: int, position: int, choice: int, stream_id: int) -> Fraction:
    """The uniform before rounding, by the text of the contract."""
    key = seed % 2**64
    words = reference.philox((index // 2, position, choice, stream_id), (key % 2**32, key >> 32))
    high, low = words[2 * (index % 2)], words[2 * (index % 2) + 1]
    return (Fraction(high * 2**32 + low) + Fraction(1, 2)) / 2**64


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 5), (1024, 8), (151_552, 7)])
def test_uniforms_are_those_of_the_contract(seed: int, first: int, count: int) -> None:
    for position, choice in ((0, 0), (7, 3), (2**32 - 1, 2**31 - 1)):
        stream_id = stream(Purpose.DRAFT, LEVEL_TOKEN, depth=9)
        drawn = noise.uniforms(one_key(seed, position, choice), first, count, stream_id)
        assert drawn.shape == (1, count)
        assert drawn.dtype == torch.float64
        for index, u in enumerate(drawn[0].tolist(), start=first):
            assert u == float(contract(seed, index, position, choice, stream_id))
            assert u == reference.uniform(seed, index, position, choice, stream_id)


def test_every_row_has_its_own_key_first_index_and_stream() -> None:
    n = len(SEEDS)
    key = NoiseKey(torch.tensor(SEEDS), torch.arange(n) * 11, torch.arange(n, dtype=torch.int32))
    first, streams = torch.arange(n) * 1024, torch.arange(n) << 8
    together = noise.uniforms(key, first, 33, streams)
    for i in range(n):
        alone = one_key(SEEDS[i], 11 * i, i)
        assert torch.equal(noise.uniforms(alone, 1024 * i, 33, i << 8)[0], together[i])


@pytest.mark.parametrize(
    ("high", "low", "expected"),
    [
        (0, 0, 2.0**-65),
        (0, 1, 3 * 2.0**-65),
        (0, 2**32 - 1, (2**33 - 1) * 2.0**-65),
        (1, 0, 2.0**-32 + 2.0**-65),
        (2**31, 0, 0.5),
        (2**32 - 1, 2**32 - 1, 1 - 2.0**-53),
        (2**32 - 1, 2**32 - 2**10, 1 - 2.0**-53),
        (2**32 - 1, 2**32 - 2**12, 1 - 2.0**-52),
    ],
)
def test_range_and_resolution(
    high: int, low: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = np.array([high, low, high, low], dtype=np.uint64).reshape(4, 1, 1)
    monkeypatch.setattr(noise, "philox", lambda counter, key: words)
    monkeypatch.setattr(reference, "philox", lambda counter, key: (high, low, high, low))
    drawn = noise.uniforms(one_key(3), 0, 2, 0)
    assert drawn.tolist() == [[expected, expected]]
    assert reference.uniform(3, 0, 5, 0, 0) == expected
    assert noise.exponentials(one_key(3), 0, 2, 0).isfinite().all()


def test_exponentials_lose_no_digits_down_to_the_smallest_uniform(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exponential(u: Tensor) -> Tensor:
        monkeypatch.setattr(noise, "uniforms", lambda *arguments: u.clone())
        return noise.exponentials(one_key(0), 0, len(u), 0)

    assert worst_error(exponential) < 2.0**-50
    # What loses them is found: log(1 - u), and float32.
    assert worst_error(lambda u: -torch.log(1 - u)) > 0.01
    assert worst_error(lambda u: -torch.log1p(-u.float()).clamp(max=0).double()) > 2.0**-30


def test_the_reference_has_the_same_exponentials() -> None:
    for seed, purpose in product(SEEDS, Purpose):
        stream_id = stream(purpose, LEVEL_TOKEN)
        drawn = noise.exponentials(one_key(seed), 6, 4, stream_id)[0]
        for i, value in enumerate(drawn.tolist()):
            expected = reference.exponential(seed, 6 + i, 5, 0, stream_id)
            assert value == pytest.approx(expected, rel=2.0**-50, abs=0.0)


def shared_streams(stream_of: Callable[[Purpose, int, int], int]) -> int:
    """Count the streams that have the counter word of another, or one beyond 32 bits."""
    depths = (0, 1, 2, 3, 7, 255, 256, 65_535, 2**24 - 1)
    ids = [stream_of(*which) for which in product(Purpose, (LEVEL_TILE, LEVEL_TOKEN), depths)]
    return len(ids) - len({word for word in ids if 0 <= word < 2**32})


def test_streams_have_counter_words_of_their_own() -> None:
    assert shared_streams(stream) == 0
    assert shared_streams(lambda purpose, level, depth: stream(Purpose.TARGET, level, depth)) > 0
    assert shared_streams(lambda purpose, level, depth: stream(purpose, LEVEL_TILE, depth)) > 0
    assert shared_streams(lambda purpose, level, depth: stream(purpose, level, depth % 256)) > 0


def test_no_two_streams_keys_or_indices_share_a_word() -> None:
    """All 64-bit words differ over what a request can vary.

    Independent words coincide with odds n^2 / 2 * 2^-64 = 1e-8 for these n = 6e5; at float64's
    53 bits that would be 2e-5, so the words themselves are compared.
    """
    words = []
    choices = np.arange(2, dtype=np.uint64).reshape(1, -1, 1)
    positions = np.arange(3, 7, dtype=np.uint64).reshape(-1, 1, 1)
    pairs = np.arange(512, dtype=np.uint64).reshape(1, 1, -1) + positions * np.uint64(0)
    for seed, purpose, level, depth in product((5, -5), Purpose, (0, 1), (0, 1, 2, 3)):
        key = seed % 2**64
        low, high = (np.array(half, dtype=np.uint64) for half in (key % 2**32, key >> 32))
        stream_id = np.full((1, 1, 1), stream(purpose, level, depth), dtype=np.uint64)
        high0, low0, high1, low1 = noise.philox((pairs, positions, choices, stream_id), (low, high))
        words += [high0 << np.uint64(32) | low0, high1 << np.uint64(32) | low1]
    every = np.concatenate([part.ravel() for part in words])
    assert len(np.unique(every)) == len(every) == 64 * 2 * 2 * 4 * 512


def test_words_of_neighbouring_indices_look_independent() -> None:
    """Uniforms do not correlate over indices, positions, seeds and purposes.

    For n pairs of independent uniforms the sample correlation is normal with deviation n^-1/2;
    6 deviations have odds of 2e-9, and four are looked at: 8e-9.
    """
    n = 20_000
    seeds, positions = torch.arange(n // 40), torch.full((n // 40,), 9)
    key = NoiseKey(seeds, positions, torch.zeros_like(seeds))
    u = noise.uniforms(key, 0, 41, stream(Purpose.TARGET))
    others = [
        u[:, 1:],
        noise.uniforms(key._replace(positions=positions + 1), 0, 40, stream(Purpose.TARGET)),
        noise.uniforms(key._replace(seeds=seeds + 2**32), 0, 40, stream(Purpose.TARGET)),
        noise.uniforms(key, 0, 40, stream(Purpose.RESIDUAL)),
    ]
    for other in others:
        pair = torch.stack((u[:, :40].flatten(), other.flatten()))
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 6 * n**-0.5
    same = torch.stack((u.flatten(), u.flatten()))
    assert float(torch.corrcoef(same)[0, 1]) > 6 * n**-0.5
