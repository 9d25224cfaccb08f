"""Scoring through the engine's loop over pages that remember which tokens made them."""

from __future__ import annotations

import random
import weakref
from concurrent.futures import Future

import numpy as np
import pytest
from msgspec import structs

from engine.adapters.registry import AdapterRegistry
from engine.arrays import Int32Array
from engine.config import AdaptersConfig, CacheConfig, SchedulerConfig
from engine.contracts import shared_blocks
from engine.contracts.adapters import AdapterSource
from engine.contracts.runner import RunnerLostError
from engine.engine import Engine
from engine.memory.blocks import BlockPool
from engine.messages.step_output import Finish, ItemScores
from engine.scoring.queue import ScoringQueue
from sampling.params import SamplingParams
from tests.engine.paged_fake import context_hash
from tests.engine.scoring.scoring_fake import (
    Scores,
    ScoringFake,
    make_engine,
    scoring,
    sequence,
    wanted,
    with_branches,
)
from tests.engine.traffic import FRONTEND, prompts, request


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("num_blocks", [20, 80])  # 20: one context barely fits
@pytest.mark.parametrize("budget", [4, 16, 64])  # items and queries are split at 4 and 16
@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_equals_whole_sequences(
    prefix_caching: bool, num_blocks: int, budget: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside choices that share prompts with the queries, in as few blocks as can be."""
    monkeypatch.setattr(shared_blocks, "MIN_SAVED", 12)
    rng = random.Random(seed)
    engine, runner = make_engine(
        num_blocks=num_blocks, budget=budget, prefix_caching=prefix_caching
    )
    inbox, asked = Scores(), []
    queries = [*prompts(rng, 6, 36), []]
    for handle in range(14):
        query = rng.choice(queries)
        items = [sequence(rng, 2, 60 - len(query) if rng.random() < 0.1 else 9)
                 for _ in range(rng.choice([1, 3, 25]))]  # fmt: skip
        asked.append(scoring(handle, query, items, rng.choice([1, 2]), rng.choice([1, 3])))
        if rng.random() < 0.5:
            most = min(4, 63 - len(query) - max(map(len, items)))
            asked[-1] = with_branches(asked[-1], [_branches(rng, most) for _ in items])
        engine.score(FRONTEND, asked[-1])
        if query and rng.random() < 0.5:
            engine.submit(FRONTEND, request(100 + handle, query, max_tokens=rng.randrange(1, 12)))
        inbox.run(engine, rng.randrange(4))
    inbox.run(engine)
    for each in asked:
        answer = inbox.ended[each.handle]
        assert answer.finish == Finish.LENGTH
        np.testing.assert_array_equal(answer.values, wanted(each))
        np.testing.assert_array_equal(answer.best, answer.others - 1)
    assert max(len(plan.token_ids) for plan in runner.plans) <= budget


class FolderReader:
    """Reads adapters at once; their hashes are their paths, where `digests` has none."""

    def __init__(self) -> None:
        self.digests: dict[str, bytes] = {}

    def read(self, number: int, source: AdapterSource) -> Future[bytes]:
        future: Future[bytes] = Future()
        future.set_result(self.digests.get(source.path, source.path.encode()))
        return future

    def drop(self, number: int) -> None:
        """Forget nothing."""


def _branches(rng: random.Random, most: int) -> list[list[int]]:
    """One to five branches of an item, with tokens or without."""
    return [sequence(rng, 0, most) for _ in range(rng.choice([1, 1, 2, 5]))]


def test_an_item_is_computed_once_for_all_its_branches() -> None:
    """Of 25 tokens, 24 are in six blocks; each of ten branches computes the last one and itself."""
    rng = random.Random(7)
    engine, runner = make_engine(num_blocks=200, budget=200)
    asked = with_branches(
        scoring(1, sequence(rng, 8, 8), [sequence(rng, 25, 25)]),
        [[[k, 9, 10] for k in range(10)]],
    )
    engine.score(FRONTEND, asked)
    inbox = Scores()
    inbox.run(engine)
    np.testing.assert_array_equal(inbox.ended[1].values, wanted(asked))
    assert [np.diff(plan.query_starts).tolist() for plan in runner.plans] == [[8, 24] + [4] * 10]


def test_branches_of_an_item_longer_than_a_step_follow_in_later_steps() -> None:
    """In as few blocks as hold the item and one branch: then a branch a step."""
    rng = random.Random(8)
    for num_blocks, rows in [
        (40, [[8], [8], [4, 3], [3, 3], [3]]),
        (7, [[8], [8], [4, 3], [3], [3], [3]]),
    ]:
        engine, runner = make_engine(num_blocks=num_blocks, budget=8)
        asked = with_branches(
            scoring(1, [], [sequence(rng, 21, 21)]), [[[1, 2], [3, 4], [5, 6], [7, 8]]]
        )
        engine.score(FRONTEND, asked)
        inbox = Scores()
        inbox.run(engine)
        np.testing.assert_array_equal(inbox.ended[1].values, wanted(asked))
        assert [np.diff(plan.query_starts).tolist() for plan in runner.plans] == rows


def test_one_query_is_computed_once_and_items_hold_nothing() -> None:
    rng = random.Random(0)
    engine, runner = make_engine(num_blocks=200, budget=64)
    query, items = sequence(rng, 32, 32), [sequence(rng, 4, 4) for _ in range(500)]
    engine.score(FRONTEND, scoring(1, query, items))
    inbox, most = Scores(), 0
    while engine.has_work:
        inbox.run(engine, 1)
        most = max(most, engine.stats().kv_blocks_used)
        assert len(engine._table.running) == 0
    assert sum(len(plan.token_ids) for plan in runner.plans) == 32 + 500 * 4
    assert len(runner.plans) == -(-(32 + 500 * 4) // 64)
    assert most == 8 + 1, "the query's blocks, and one for the longest item"
    assert engine.stats().kv_blocks_used == 0


def test_items_share_their_query_from_the_step_that_computes_it() -> None:
    rng = random.Random(5)
    engine, runner = make_engine(num_blocks=200, budget=256)
    asked = scoring(1, sequence(rng, 33, 33), [sequence(rng, 4, 4) for _ in range(100)])
    engine.score(FRONTEND, asked)
    inbox = Scores()
    inbox.run(engine)
    np.testing.assert_array_equal(inbox.ended[1].values, wanted(asked))
    sharings = [plan.sharing for plan in runner.plans]
    # 4 tokens and the rest of the query each: 44 after the query's 32, then 51, too few are left.
    assert [s and (s.starts.tolist(), s.num_blocks.tolist()) for s in sharings] == [
        ([1, 45], [8]),
        ([0, 51], [8]),
        None,
    ]


def test_a_known_query_is_not_computed_again() -> None:
    rng = random.Random(1)
    engine, runner = make_engine()
    query = sequence(rng, 22, 22)
    first, second = (scoring(h, query, [sequence(rng, 3, 3)]) for h in (1, 2))
    inbox = Scores()
    engine.submit(FRONTEND, request(9, query, max_tokens=1))
    inbox.run(engine)
    engine.score(FRONTEND, first)
    inbox.run(engine)
    engine.score(FRONTEND, second)
    inbox.run(engine)
    assert [inbox.ended[h].num_cached for h in (1, 2)] == [20, 20]
    stats = engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (3 * 22, 2 * 20)
    assert stats.prompt_tokens_computed == 22 + 2 * 5
    assert [len(plan.token_ids) for plan in runner.plans] == [5, 5]
    np.testing.assert_array_equal(inbox.ended[2].values, wanted(second))


@pytest.mark.parametrize("parks", [False, True])
def test_what_is_aborted_behind_a_first_one_without_blocks_is_let_go_of(parks: bool) -> None:
    engine, _ = make_engine(num_blocks=11, max_model_len=40)
    inbox = Scores()
    engine.submit(FRONTEND, request(0, [1, 2, 3, 4], max_tokens=30, params=SamplingParams()))
    engine.step()
    engine.score(FRONTEND, scoring(1, [1 + i % 9 for i in range(37)], [[5]]))
    engine.step()
    if parks:
        engine.held.park()
    held: list[weakref.ref[Int32Array]] = []
    for handle in range(2, 2000):
        asked = scoring(handle, [1] * 20, [[5]])
        held.append(weakref.ref(asked.query_token_ids))
        engine.score(FRONTEND, asked)
        engine.abort(FRONTEND, handle)
    del asked
    inbox.run(engine, 1)
    assert sum(query() is not None for query in held) < 5
    assert engine.stats().num_waiting == 1
    engine.held.release()
    inbox.run(engine)
    assert inbox.ended[1].finish == Finish.LENGTH


def test_queries_of_other_salts_share_no_blocks() -> None:
    engine, _ = make_engine()
    inbox = Scores()
    for handle, salt in enumerate(["a", "b", "a", ""]):
        asked = scoring(handle, list(range(1, 9)), [[9]])
        engine.score(FRONTEND, structs.replace(asked, cache_salt=salt))
        inbox.run(engine)
    assert [inbox.ended[handle].num_cached for handle in range(4)] == [0, 0, 8, 0]


def test_queries_of_an_adapter_that_was_read_again_share_its_blocks() -> None:
    """Unless its folder holds another adapter by then, or another has its name."""
    reader = FolderReader()
    pool, runner, answers = BlockPool(60), ScoringFake(4, 65, 60, 4), list[ItemScores]()
    registry = AdapterRegistry(AdaptersConfig(max_loras=1, max_cpu_loras=1), reader)
    queue = ScoringQueue(
        SchedulerConfig(max_rows=4, max_step_tokens=16),
        CacheConfig(block_size=4),
        pool,
        runner,
        num_promised=lambda: 0,
        report=lambda _, scores: answers.append(scores),
        adapters=registry,
    )

    def load(name: str) -> None:
        registry.load(name, AdapterSource(name), replaces=False, done=lambda error: None)
        registry.settle()

    def num_cached(handle: int, digest: str = "") -> int:
        asked = scoring(handle, list(range(1, 9)), [[9]])
        asked = structs.replace(asked, adapter="x", adapter_digest=digest)
        queue.submit(FRONTEND, asked, handle)
        registry.settle()
        while queue.has_work:
            queue.launch()
            queue.read_back()
        return answers[-1].num_cached

    load("x")
    assert [num_cached(handle) for handle in (1, 2)] == [0, 8]
    load("y")  # x is dropped
    assert num_cached(3) == 8, "the folder is as it was"
    load("z")
    reader.digests["x"] = b"another"
    for handle, digest, words in (
        (4, "", "x was written since it was loaded as 'x'"),
        (5, b"x".hex(), "x was written since it was loaded as 'x'"),
        (6, b"another".hex(), "'x' was replaced"),
    ):
        num_cached(handle, digest)
        assert answers[-1].finish == Finish.ADAPTER
        assert words in str(answers[-1].error)
    del reader.digests["x"]
    assert num_cached(7, b"x".hex()) == 8, "the folder is what it was again"


def test_hidden_states_are_read_beside_logprobs() -> None:
    """Split, packed with other requests, and in the order of the items."""
    rng = random.Random(4)
    for budget in (4, 16, 256):
        engine, _ = make_engine(num_blocks=200, budget=budget)
        query = sequence(rng, 9, 9)
        items = [sequence(rng, 1, 20) for _ in range(12)]
        embeds = structs.replace(
            scoring(1, query, items), embeds=True, id_lists=np.zeros((1, 0), dtype=np.int32)
        )
        other = scoring(2, query, items[:5], num_read=1)
        inbox = Scores()
        for asked in (embeds, other):
            engine.score(FRONTEND, asked)
        inbox.run(engine)
        contexts = [context_hash(np.array([*query, *item], dtype=np.int32)) for item in items]
        want = np.array(contexts)[:, None] % np.array([10007, 4001])
        np.testing.assert_array_equal(inbox.ended[1].hidden, want.astype(np.float32))
        np.testing.assert_array_equal(inbox.ended[2].values, wanted(other))
        assert inbox.ended[2].hidden is None


def test_a_query_is_reusable_only_after_it_was_read_back_clean() -> None:
    query = list(range(1, 9))
    engine, runner = make_engine()
    runner.bad_context = context_hash(np.array([*query, 5]))
    engine.score(FRONTEND, scoring(1, query, [[5]]))
    inbox = Scores()
    inbox.run(engine)
    assert inbox.ended[1].finish == Finish.NAN
    assert engine.stats().nan_rows == 1
    engine.score(FRONTEND, scoring(2, query, [[6]]))
    inbox.run(engine)
    assert inbox.ended[2].num_cached == 0
    assert inbox.ended[2].finish == Finish.LENGTH


def test_a_bad_item_ends_its_request_and_no_other() -> None:
    engine, runner = make_engine()
    runner.bad_context = context_hash(np.array([3, 4, 5]))
    asked = [scoring(1, [3, 4], [[6], [5]]), scoring(2, [3, 4], [[6], [7]])]
    for each in asked:
        engine.score(FRONTEND, each)
    inbox = Scores()
    inbox.run(engine)
    assert inbox.ended[1].finish == Finish.NAN
    assert len(inbox.ended[1].values) == 0
    np.testing.assert_array_equal(inbox.ended[2].values, wanted(asked[1]))


def test_requests_of_one_step_get_their_own_positions_and_ids() -> None:
    """Three requests with other numbers of positions and of ids, each in one step."""
    engine, runner = make_engine(budget=64)
    asked = [
        structs.replace(
            scoring(handle, [handle], [[5 + handle, 6], [7, 8]][: 1 + handle % 2], num_read=2),
            id_lists=np.arange(width, dtype=np.int32).reshape(1, -1),
        )
        for handle, width in [(1, 2), (2, 4), (3, 1)]
    ]
    for each in asked:
        engine.score(FRONTEND, each)
    inbox = Scores()
    inbox.run(engine)
    assert len(runner.plans) == 1
    for each in asked:
        np.testing.assert_array_equal(inbox.ended[each.handle].values, wanted(each))


def test_a_small_request_does_not_wait_for_a_large_one() -> None:
    rng = random.Random(2)
    engine, _ = make_engine(num_blocks=100)
    inbox = Scores()
    engine.score(FRONTEND, scoring(1, [1, 2], [sequence(rng, 4, 4) for _ in range(400)]))
    inbox.run(engine, 3)
    engine.score(FRONTEND, scoring(2, [5, 6], [[7]]))
    inbox.run(engine, 4)
    assert 2 in inbox.ended
    assert 1 not in inbox.ended
    inbox.run(engine)


def test_choices_go_on_while_items_are_scored() -> None:
    rng = random.Random(3)
    engine, _ = make_engine(num_blocks=100)
    inbox = Scores()
    engine.score(FRONTEND, scoring(1, [1, 2], [sequence(rng, 4, 4) for _ in range(400)]))
    engine.submit(FRONTEND, request(2, [9, 8, 7], max_tokens=6))
    inbox.run(engine, 12)
    assert (2, 0) in inbox.finish
    assert 1 not in inbox.ended
    inbox.run(engine)


@pytest.mark.parametrize("steps", range(4))
def test_abort(steps: int) -> None:
    rng = random.Random(4)
    engine, _ = make_engine(num_blocks=100)
    asked = [scoring(h, [1, 2, 3, 4, 5], [sequence(rng, 4, 4) for _ in range(50)]) for h in (1, 2)]
    for each in asked:
        engine.score(FRONTEND, each)
    inbox = Scores()
    inbox.run(engine, steps)
    engine.abort(FRONTEND, 1)
    engine.abort(FRONTEND, 1)
    inbox.run(engine)
    assert inbox.ended[1].finish == Finish.ABORT
    np.testing.assert_array_equal(inbox.ended[2].values, wanted(asked[1]))


def test_what_a_frontend_asked_for_ends_with_it() -> None:
    engine, _ = make_engine()
    asked = [scoring(handle, [1, 2], [[3, 4]] * 50) for handle in (1, 2)]
    for frontend, each in zip((FRONTEND, b"gone"), asked, strict=True):
        engine.score(frontend, each)
    engine.step()
    engine.abort_all(b"gone")
    inbox = Scores()
    inbox.run(engine)
    np.testing.assert_array_equal(inbox.ended[1].values, wanted(asked[0]))
    assert inbox.ended[2].finish == Finish.ABORT


def test_a_step_that_raises_ends_its_requests_alone() -> None:
    engine, runner = make_engine()
    runner.fail_scoring = MemoryError("no memory")
    engine.score(FRONTEND, scoring(1, [1], [[2]]))
    inbox = Scores()
    inbox.run(engine)
    assert inbox.ended[1].finish == Finish.ERROR
    assert "no memory" in str(inbox.ended[1].error)
    assert engine.stats().failed_steps == 1
    engine.score(FRONTEND, scoring(2, [1], [[2]]))
    inbox.run(engine)
    assert inbox.ended[2].finish == Finish.LENGTH


def test_a_lost_runner_ends_the_loop() -> None:
    engine, runner = make_engine()
    runner.fail_scoring = RunnerLostError("the device is gone")
    engine.score(FRONTEND, scoring(1, [1], [[2]]))
    with pytest.raises(RunnerLostError):
        Scores().run(engine)


def test_items_behind_a_split_one_do_not_write_into_its_blocks() -> None:
    """The last part of the split item and the first item after it are computed in one step."""
    engine, runner = make_engine(budget=9)
    asked = scoring(1, [5, 6], [list(range(1, 12)), [21, 22], [31, 32]])
    engine.score(FRONTEND, asked)
    inbox = Scores()
    inbox.run(engine)
    assert [plan.query_starts.tolist() for plan in runner.plans] == [[0, 9], [0, 4, 8], [0, 4]]
    plan = runner.plans[1]
    written = plan.slots[4:] // 4
    assert not set(plan.block_tables[0].tolist()) & set(written.tolist())
    np.testing.assert_array_equal(inbox.ended[1].values, wanted(asked))


def only_waits(engine: Engine) -> bool:
    return engine.only_waits


def test_what_comes_while_a_lone_step_is_computed_is_launched_behind_it() -> None:
    engine, runner = make_engine(num_blocks=80, budget=64)
    first, second = (scoring(handle, [handle] * 8, [[7, 8]]) for handle in (1, 2))
    inbox = Scores()
    assert not only_waits(engine)
    engine.score(FRONTEND, first)
    assert not only_waits(engine), "it is to be launched"
    runner.is_there = False
    inbox.run(engine, 1)
    assert only_waits(engine)
    engine.score(FRONTEND, second)
    assert not only_waits(engine)
    inbox.run(engine, 1)
    assert len(runner.plans) == 2
    assert list(inbox.ended) == [1]
    assert only_waits(engine)
    runner.handles[-1].is_there = True
    assert not only_waits(engine)
    inbox.run(engine)
    np.testing.assert_array_equal(inbox.ended[2].values, wanted(second))


def test_a_step_of_scoring_is_not_awaited_alone_beside_choices_or_before_others() -> None:
    engine, runner = make_engine(num_blocks=80, budget=16)
    runner.is_there = False
    engine.score(FRONTEND, scoring(1, [1] * 8, [[7] * 8, [8] * 8]))
    inbox = Scores()
    inbox.run(engine, 1)
    assert not only_waits(engine), "its second item follows"
    inbox.run(engine, 1)
    assert only_waits(engine)
    engine.submit(FRONTEND, request(100, [5, 6], max_tokens=3))
    assert not only_waits(engine)
