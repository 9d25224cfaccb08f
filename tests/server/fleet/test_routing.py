"""The router: affinity, the bound on queues, ties, memory."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from server.fleet.routing import MAX_HOLDERS, PrefixRouter

NAMES = [f"r{i}" for i in range(6)]
PROMPTS = st.lists(st.integers(0, 8), max_size=4).map(lambda parts: chain(*parts))
LOADS = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 12), min_size=1)


def chain(*parts: int) -> list[int]:
    """Hashes of a prompt whose blocks are these: each stands for all up to its own."""
    found, value = [], 1
    for part in parts:
        value = value * 31 + part
        found.append(value)
    return found


@given(st.lists(st.tuples(PROMPTS, LOADS), max_size=60), st.integers(1, 6))
def test_a_long_queue_is_never_made_longer(
    calls: list[tuple[list[int], dict[str, int]]], max_lead: int
) -> None:
    router = PrefixRouter(max_lead, max_prefixes=20)
    sent: dict[int, set[str]] = {}
    for hashes, loads in calls:
        route = router.choose(hashes, loads)
        load, least = loads[route.replica], min(loads.values())
        if route.num_known:
            assert load < least + max_lead
            assert route.replica in sent[hashes[route.num_known - 1]], "it holds what was claimed"
        else:
            assert load == least
        for each in hashes:
            sent.setdefault(each, set()).add(route.replica)
        assert router.num_prefixes <= 20


@given(st.lists(st.tuples(PROMPTS, LOADS), max_size=40))
def test_decisions_depend_on_the_calls_alone(
    calls: list[tuple[list[int], dict[str, int]]],
) -> None:
    one, two = PrefixRouter(), PrefixRouter()
    assert [one.choose(*call) for call in calls] == [two.choose(*call) for call in calls]


def test_the_longest_prefix_decides() -> None:
    router = PrefixRouter()
    loads = {"r0": 0, "r1": 1}
    assert router.choose(chain(1, 2), {"r0": 0}) == ("r0", 0)
    assert router.choose(chain(1, 3), {"r1": 0}) == ("r1", 0)
    assert router.choose(chain(1, 2, 4), loads) == ("r0", 2)
    assert router.choose(chain(1, 3, 4), loads) == ("r1", 2)
    assert router.choose(chain(1, 9), loads) == ("r0", 1), "of both, the one with less to do"


def test_a_holder_with_a_long_queue_gives_way_to_one_of_a_shorter_prefix() -> None:
    router = PrefixRouter(max_lead=4)
    router.choose(chain(1, 2), {"r0": 0})
    router.choose(chain(1), {"r1": 0})
    loads = {"r0": 4, "r1": 3, "r2": 0}
    assert router.choose(chain(1, 2), loads) == ("r1", 1)
    assert router.choose(chain(1, 2), {"r0": 9, "r1": 9, "r2": 0}) == ("r2", 0)
    assert router.choose(chain(1, 2), {"r0": 9, "r1": 9, "r2": 1}) == ("r2", 2), "it holds it now"


def test_replicas_that_are_gone_get_nothing() -> None:
    router = PrefixRouter()
    router.choose(chain(1), {"r0": 0})
    assert router.choose(chain(1), {"r1": 5}) == ("r1", 0)


def test_routers_that_know_nothing_of_each_other_agree() -> None:
    loads = dict.fromkeys(NAMES, 0)
    rng = np.random.default_rng(1)
    firsts = [int(value) for value in rng.integers(0, 2**63, 600)]
    chosen = [PrefixRouter().choose([first], loads).replica for first in firsts]
    backwards = dict(reversed(loads.items()))
    assert chosen == [PrefixRouter().choose([first], backwards).replica for first in firsts]
    # Binomial(600, 1/6): 100 each, sigma 9.1; 55 below or above has odds of 1e-8 a replica.
    counts = [chosen.count(name) for name in NAMES]
    assert min(counts) > 45
    assert max(counts) < 155


def test_short_prompts_go_round() -> None:
    router = PrefixRouter()
    loads = dict.fromkeys(NAMES, 0)
    assert {router.choose([], loads).replica for _ in NAMES} == set(NAMES)


def test_the_longer_prefixes_of_a_prompt_are_forgotten_first() -> None:
    router = PrefixRouter(max_prefixes=2)
    router.choose(chain(1, 2, 3), {"r0": 0})
    loads = {"r0": 1, "r1": 0}
    assert router.choose(chain(1, 2, 3), loads) == ("r0", 2)


def test_the_replicas_that_had_a_prefix_last_are_remembered() -> None:
    router = PrefixRouter()
    names = [f"r{i}" for i in range(MAX_HOLDERS + 2)]
    busy = dict.fromkeys(names, 100)
    for name in names[:-1]:  # one more than are remembered, the first of them r0
        assert router.choose(chain(1), busy | {name: 0}) == (name, 0)
    assert router.choose(chain(1), busy | {names[-2]: 3, names[-1]: 0}) == (names[-2], 1)
    assert router.choose(chain(1), busy | {"r0": 3, names[-1]: 0}).num_known == 0


def test_memory_is_bounded() -> None:
    router = PrefixRouter(max_lead=1, max_prefixes=50)
    for i in range(300):
        router.choose(chain(i % 70, i), {f"r{i}": 0})
    assert router.num_prefixes == 50
    router.resize(3)
    assert router.num_prefixes == 3
    for i in range(3 * MAX_HOLDERS):
        router.choose([7], {f"r{i}": 0})
    assert len(router._holders[7]) <= MAX_HOLDERS
    assert len(router._marks) <= 2
