"""A runner that scores without a model: its pages remember which tokens made them."""

from __future__ import annotations

import itertools
import random
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import structs

from engine.arrays import Float32Array, Int32Array
from engine.contracts.scoring import ScoringPlan, ScoringResult
from engine.engine import Engine
from engine.messages.request import Branches, ScoringRequest
from engine.messages.step_output import ItemScores
from tests.engine.paged_fake import VOCAB, PagedFake, context_hash, make_engine_over
from tests.engine.traffic import Inbox


@dataclass
class Handle:
    result: ScoringResult | Exception
    is_there: bool = True

    def wait(self) -> ScoringResult:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class ScoringFake(PagedFake):
    """Keys are hashes of all tokens up to a position, made from the key of the one before it.

    A row that reads a wrong, stale or unwritten block gives a value that no whole sequence gives.
    """

    def __init__(self, *args: int, **fields: int) -> None:
        super().__init__(*args, **fields)
        self.plans: list[ScoringPlan] = []
        self.bad_context: int | None = None
        self.fail_scoring: Exception | None = None
        self.is_there = True
        self.handles: list[Handle] = []

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
                self.links.add((before, int(contexts[token])))
            assert plan.seq_lens[row] == position + 1
        self._check_keys(plan)
        read = contexts[plan.read_tokens]
        values = np.array([[value(int(c), i) for i in ids] for c, ids in zip(read, plan.id_lists,
                          strict=True)], dtype=np.float32).reshape(plan.id_lists.shape)  # fmt: skip
        others = np.array([value(int(c), -7) for c in read], dtype=np.float32)
        others[read == self.bad_context] = np.nan
        best_ids = (read % VOCAB).astype(np.int32)
        sums = others.astype(np.float64)
        hidden = contexts[plan.embed_tokens, None] % np.array([10007, 4001])
        hidden = hidden.astype(np.float32)
        result = ScoringResult(values, others, best_ids, others - 1, sums, hidden)
        self.handles.append(Handle(result, self.is_there))
        return self.handles[-1]

    def _check_keys(self, plan: ScoringPlan) -> None:
        """What rows attend to once all have stored their keys, as in a layer of a model."""
        for table, length in zip(plan.block_tables, plan.seq_lens.tolist(), strict=True):
            keys = [0, *(self._key(table, position) for position in range(length))]
            assert self.links.issuperset(itertools.pairwise(keys)), "another row's keys"

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

    def _key(self, table: Int32Array, position: int) -> int:
        key = int(self.keys[table[position // self.block_size] * self.block_size
                            + position % self.block_size])  # fmt: skip
        assert key >= 0, "an unwritten cell"
        return key


def value(context: int, token_id: int) -> float:
    return float(np.float32((context // 3 + token_id * 101) % 10007))


def make_engine(**fields: Any) -> tuple[Engine, ScoringFake]:
    """An engine over a `ScoringFake`; `fields` are those of `make_engine_over`."""
    return make_engine_over(ScoringFake, **({"num_blocks": 60} | fields))


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


def with_branches(asked: ScoringRequest, branches: list[list[list[int]]]) -> ScoringRequest:
    """The same query and items, each continued by its own branches.

    The first branch of an item reads the item's last position too, so that a tree of labels is
    read: every position of a branch, and the item's end once.
    """
    flat = [branch for each in branches for branch in each]
    firsts = np.array([k == 0 for each in branches for k in range(len(each))])
    lens = np.array([len(branch) for branch in flat], dtype=np.int32)
    return structs.replace(
        asked,
        num_read=(lens + firsts).astype(np.int32),
        branches=Branches(
            counts=np.array([len(each) for each in branches], dtype=np.int32),
            lens=lens,
            token_ids=np.array([token for branch in flat for token in branch], dtype=np.int32),
        ),
    )


def wanted(asked: ScoringRequest) -> Float32Array:
    """What the request must be answered, from whole sequences."""
    rows, p = [], 0
    for sequence_ids, num_read in zip(sequences(asked), asked.num_read.tolist(), strict=True):
        for back in range(num_read - 1, -1, -1):
            part = sequence_ids[: len(sequence_ids) - back]
            context = context_hash(np.concatenate([asked.query_token_ids, part]))
            ids = asked.id_lists[p % len(asked.id_lists)]
            rows.append([value(context, int(i)) for i in ids])
            p += 1
    return np.array(rows, dtype=np.float32)


def sequences(asked: ScoringRequest) -> list[Int32Array]:
    """Each item with each of its branches."""
    items = np.split(asked.item_token_ids, np.cumsum(asked.item_lens)[:-1])
    if asked.branches is None:
        return items
    branches = iter(np.split(asked.branches.token_ids, np.cumsum(asked.branches.lens)[:-1]))
    return [
        np.concatenate([item, next(branches)])
        for item, count in zip(items, asked.branches.counts.tolist(), strict=True)
        for _ in range(count)
    ]


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
