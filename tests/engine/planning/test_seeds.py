"""Seeds of requests that name none: random, or the same sequence at every start."""

from __future__ import annotations

import msgspec
import numpy as np

from engine.messages.request import Request
from engine.planning.seeds import Seeds
from sampling.params import SamplingParams

UNSEEDED = Request(
    handle=1,
    prompt_token_ids=np.array([5], dtype=np.int32),
    params=SamplingParams(),
    max_tokens=4,
)
SEEDED = msgspec.structs.replace(UNSEEDED, params=SamplingParams(seed=8))


def test_the_sequence_is_the_same_at_every_start_and_no_seed_comes_twice() -> None:
    drawn = []
    for _ in range(2):
        seeds = Seeds(3)
        requests = [UNSEEDED, SEEDED, UNSEEDED, UNSEEDED]
        drawn.append([seeds.settle(request)[1] for request in requests])
    assert drawn[0] == drawn[1]
    assert drawn[0][1] == 8
    assert len(set(drawn[0])) == 4
    assert Seeds(4).settle(UNSEEDED)[1] != drawn[0][0]


def test_a_seed_of_the_sequence_is_as_if_the_request_had_named_it() -> None:
    """So that no path draws the row with noise of its own."""
    request, seed = Seeds(3).settle(UNSEEDED)
    assert request.params.seed == seed
    assert UNSEEDED.params.seed is None


def test_without_a_sequence_seeds_are_random_and_the_request_has_none() -> None:
    seeds = Seeds(None)
    settled = [seeds.settle(UNSEEDED) for _ in range(100)]
    assert all(request is UNSEEDED for request, _ in settled)
    # Two of a hundred equal by chance: 4950 / 2^64.
    assert len({seed for _, seed in settled}) == 100
    assert all(-(2**63) <= seed < 2**63 for _, seed in settled)
    assert seeds.settle(SEEDED) == (SEEDED, 8)
