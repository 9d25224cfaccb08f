"""Scoring through the engine's loop over pages that remember which tokens made them."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

import numpy as np
import pytest

from engine.config import CacheConfig, EngineConfig, EngineInfo, ModelConfig, SchedulerConfig
from engine.contracts import sharing
from engine.contracts.scoring import ScoringPlan, ScoringResult
from engine.engine import Engine
from engine.plan import RunnerLostError
from engine.request import Finish, ItemScores, ScoringRequest
from engine.scoring.packing import Rows, make_plan
from tests.engine.paged_fake import VOCAB, PagedFake, context_hash
from tests.engine.test_engine import Inbox, prompts, request

FRONTEND = b"frontend"


@dataclass
class Handle:
    result: ScoringResult | Exception

    def wait(self, timeout_s: float | None = None) -> ScoringResult:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class ScoringFake(PagedFake):
    """Keys are hashes of all tokens up to a position, made from the key of the one before it.

    A row that reads a wrong, stale or unwritten block gives a value that no whole sequence gives.
    """

    def __init__(self, *args: int) -> None:
        super().__init__(*args)
        self.plans: list[ScoringPlan] = []
        self.bad_context: int | None = None
        self.fail_scoring: Exception | None = None

    def launch_scoring(self, plan: ScoringPlan) -> Handle:
        self.plans.append(plan)
        if self.fail_scoring is not None:
            error, self.fail_scoring = self.fail_scoring, None
            return Handle(error)
        assert (plan.slots >= self.block_size).all(), "a row computes into the null block"
        assert len(set(plan.slots.tolist())) == len(plan.slots), "two tokens share a cell"
        self._check_sharing(plan)
        contexts = np.zeros(len(plan.token_ids), dtype=np.int64)
        for row, begin in enumerate(plan.query_starts[:-1].tolist()):
            for token in range(begin, int(plan.query_starts[row + 1])):
                position = int(plan.positions[token])
                before = self._key(plan.block_tables[row], position - 1) if position else 0
                raw = plan.token_ids[token : token + 1].tobytes()
                contexts[token] = self.keys[plan.slots[token]] = zlib.crc32(raw, before)
            assert plan.seq_lens[row] == position + 1
        read = contexts[plan.read_tokens]
        values = np.array([[value(int(c), i) for i in ids] for c, ids in zip(read, plan.id_lists,
                          strict=True)], dtype=np.float32).reshape(plan.id_lists.shape)  # fmt: skip
        others = np.array([value(int(c), -7) for c in read], dtype=np.float32)
        others[read == self.bad_context] = np.nan
        return Handle(ScoringResult(values, others))

    def _check_sharing(self, plan: ScoringPlan) -> None:
        if plan.sharing is None:
            return
        starts, num_blocks = plan.sharing
        assert len(starts) == len(num_blocks) + 1
        assert starts[-1] == len(plan.block_tables)
        assert (np.diff(starts) > 1).all()
        num_before = plan.seq_lens - np.diff(plan.query_starts)
        for first, end, count in zip(starts[:-1], starts[1:], num_blocks, strict=True):
            assert count > 0
            shared = plan.block_tables[first:end, :count]
            assert (shared == shared[0]).all()
            assert (num_before[first:end] >= count * self.block_size).all(), "seen in part"

    def _key(self, table: np.ndarray, position: int) -> int:
        key = int(self.keys[table[position // self.block_size] * self.block_size
                            + position % self.block_size])  # fmt: skip
        assert key >= 0, "an unwritten cell"
        return key


def value(context: int, token_id: int) -> float:
    return float(np.float32((context // 3 + token_id * 101) % 10007))


def make_engine(
    *, num_blocks: int = 60, budget: int = 16, prefix_caching: bool = True, block_size: int = 4
) -> tuple[Engine, ScoringFake]:
    config = EngineConfig(
        model=ModelConfig(model="fake"),
        cache=CacheConfig(block_size=block_size, prefix_caching=prefix_caching),
        scheduler=SchedulerConfig(max_rows=4, max_step_tokens=budget),
    )
    info = EngineInfo(
        vocab_size=VOCAB,
        max_model_len=64,
        eos_token_ids=(0,),
        max_rows=4,
        num_blocks=num_blocks,
        block_size=block_size,
        dtype="float32",
        device="cpu",
    )
    runner = ScoringFake(4, 65, num_blocks, block_size)
    return Engine(config, info, runner), runner


def scoring(
    handle: int, query: list[int], items: list[list[int]], num_read: int = 1, num_lists: int = 1
) -> ScoringRequest:
    return ScoringRequest(
        handle=handle,
        query_token_ids=np.array(query, dtype=np.int32),
        item_token_ids=np.array([token for item in items for token in item], dtype=np.int32),
        item_lens=np.array([len(item) for item in items], dtype=np.int32),
        num_read=np.full(len(items), num_read, dtype=np.int32),
        id_lists=np.arange(2 * num_lists, dtype=np.int32).reshape(num_lists, 2) + handle % 5,
    )


def wanted(asked: ScoringRequest) -> np.ndarray:
    """What the request must be answered, from whole sequences."""
    rows, start, p = [], 0, 0
    for length, num_read in zip(asked.item_lens.tolist(), asked.num_read.tolist(), strict=True):
        item = asked.item_token_ids[start : start + length]
        start += length
        for back in range(num_read - 1, -1, -1):
            part = item[: length - back]
            context = context_hash(np.concatenate([asked.query_token_ids, part]))
            ids = asked.id_lists[p % len(asked.id_lists)]
            rows.append([value(context, int(i)) for i in ids])
            p += 1
    return np.array(rows, dtype=np.float32)


class Scores(Inbox):
    def __init__(self) -> None:
        super().__init__()
        self.ended: dict[int, ItemScores] = {}

    def run(self, engine: Engine, steps: int = 5000) -> None:
        for _ in range(steps):
            if not engine.has_work:
                engine.check()
                return
            for _, output in engine.step():
                self.read(output)
                for scores in output.item_scores:
                    assert scores.handle not in self.ended, "answered twice"
                    self.ended[scores.handle] = scores
        if steps == 5000:
            raise AssertionError("the engine does not come to an end")


def sequence(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randrange(1, VOCAB) for _ in range(rng.randint(low, high))]


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("num_blocks", [20, 80])  # 20: one context barely fits
@pytest.mark.parametrize("budget", [4, 16, 64])  # items and queries are split at 4 and 16
@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_equals_whole_sequences(
    prefix_caching: bool, num_blocks: int, budget: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside choices that share prompts with the queries, in as few blocks as can be."""
    monkeypatch.setattr(sharing, "MIN_SAVED", 12)
    rng = random.Random(seed)
    engine, _ = make_engine(num_blocks=num_blocks, budget=budget, prefix_caching=prefix_caching)
    inbox, asked = Scores(), []
    queries = [*prompts(rng, 6, 36), []]
    for handle in range(14):
        query = rng.choice(queries)
        items = [sequence(rng, 2, 60 - len(query) if rng.random() < 0.1 else 9)
                 for _ in range(rng.choice([1, 3, 25]))]  # fmt: skip
        asked.append(scoring(handle, query, items, rng.choice([1, 2]), rng.choice([1, 3])))
        engine.score(FRONTEND, asked[-1])
        if query and rng.random() < 0.5:
            engine.submit(FRONTEND, request(100 + handle, query, max_tokens=rng.randrange(1, 12)))
        inbox.run(engine, rng.randrange(4))
    inbox.run(engine)
    for each in asked:
        answer = inbox.ended[each.handle]
        assert answer.finish == Finish.LENGTH
        np.testing.assert_array_equal(answer.values, wanted(each))


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
    # 4 tokens and the rest of the query each: 44 behind the query's 32, then 51, too few are left.
    assert [s and (s.starts.tolist(), s.num_blocks.tolist()) for s in sharings] == [
        ([1, 45], [8]),
        ([0, 51], [8]),
        None,
    ]


def test_rows_that_share_blocks_come_last_and_positions_are_read_in_order() -> None:
    def rows(first_id: int, counts: list[int], num_read: list[int], num_shared: int) -> Rows:
        start = num_shared * 4
        return Rows(
            token_ids=np.arange(first_id, first_id + sum(counts), dtype=np.int32),
            counts=np.array(counts),
            starts=np.full(len(counts), start),
            tables=np.arange(len(counts) * (num_shared + 2), dtype=np.int32).reshape(
                len(counts), -1
            ),
            num_read=np.array(num_read),
            id_lists=np.full((sum(num_read), 1), first_id, dtype=np.int32),
            num_shared=num_shared,
        )

    many = [2] * 200
    plan = make_plan(
        [
            rows(1000, many, [2] * 200, num_shared=2),
            rows(100, [3, 4], [1, 2], num_shared=2),  # too few for it to pay
            rows(2000, many, [1] * 200, num_shared=3),
            rows(200, [8], [0], num_shared=0),
        ],
        block_size=4,
    )
    tokens = [*range(100, 107), *range(200, 208), *range(1000, 1400), *range(2000, 2400)]
    assert plan.token_ids.tolist() == tokens
    read = plan.token_ids[plan.read_tokens]
    assert read.tolist() == [*range(1000, 1400), 102, 105, 106, *range(2001, 2400, 2)]
    assert (plan.id_lists[:, 0] == read // 100 * 100)[400:403].all()
    assert plan.seq_lens[[0, 1, 2, 3, 203]].tolist() == [11, 12, 8, 10, 14]
    assert plan.sharing is not None
    assert plan.sharing.starts.tolist() == [3, 203, 403]
    assert plan.sharing.num_blocks.tolist() == [2, 3]


def test_sharing_pays_where_rows_leave_tiles_idle() -> None:
    def pays(counts: list[int], num_keys: int) -> bool:
        return sharing.pays_to_share(np.array(counts), num_keys)

    assert pays([32] * 256, 1024)
    assert pays([1] * 10, 128)
    assert not pays([32] * 256, 0)
    assert not pays([32] * 4, 128)  # three tiles less
    assert not pays([5000], 10**6)
    assert not pays([128] * 64, 10**6)


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
    assert [len(plan.token_ids) for plan in runner.plans] == [5, 5]
    np.testing.assert_array_equal(inbox.ended[2].values, wanted(second))


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
