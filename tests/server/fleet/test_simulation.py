"""The simulation of fleets, small: what it must find of each policy."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.fleet_sim import policies, simulate
from server.fleet.prefixes import BLOCK_TOKENS, MAX_BLOCKS, prefix_hashes
from server.fleet.routing import PrefixRouter
from tests.server.slowness import slowness


def test_the_prefix_router_finds_more_than_what_looks_at_queues_alone() -> None:
    found = {name: simulate(name, 12, 60, 24.0, seed=3) for name in policies(1, 0, 1)}
    router = found["prefix router"]
    for name in ("random", "round robin", "least loaded"):
        assert router.hit_rate > found[name].hit_rate + 0.1, name
        assert router.first_token_p99_s < found[name].first_token_p99_s, name
    assert router.imbalance < found["consistent hash"].imbalance


def test_a_simulation_can_be_repeated() -> None:
    one, two = (simulate("prefix router", 4, 30, 24.0, seed=1) for _ in range(2))
    assert (one.hit_rate, one.wait_p99_s) == (two.hit_rate, two.wait_p99_s)


def test_a_decision_takes_less_than_two_milliseconds() -> None:
    """Of the longest prompts among 1,000 replicas, in CPU time at the median."""
    rng = np.random.default_rng(0)
    router, loads = PrefixRouter(), {f"{i:08x}": 0 for i in range(1000)}
    seconds = []
    for i in range(60):
        prompt = rng.integers(0, 1000, MAX_BLOCKS * BLOCK_TOKENS, dtype=np.int32)
        prompt[:1024] = i % 10
        began = time.process_time()
        route = router.choose(prefix_hashes(prompt), loads)
        seconds.append(time.process_time() - began)
        loads[route.replica] += 1
    assert sorted(seconds)[30] < 2e-3 * slowness()
