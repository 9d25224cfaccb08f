"""Scoring beside generation: requests in, a forward of their items a turn, values out. No torch.

Blocks are the only thing shared with generation, and a block that is released is written by its
next owner behind the step that used it. So an item's blocks are released when its step is launched,
and a request that ends early gives its blocks back at once.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.blocks import BlockPool
from engine.config import CacheConfig, SchedulerConfig
from engine.contracts.scoring import ScoringHandle, ScoringResult, ScoringRunner
from engine.plan import RunnerLostError
from engine.request import Finish, ItemScores, ScoringRequest
from engine.scoring.packing import Rows, block_tables, make_plan
from engine.scoring.progress import ScoringProgress

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Part:
    """Positions of one request that a step reads."""

    work: ScoringProgress
    first: int
    count: int


@dataclass(frozen=True)
class _Step:
    handle: ScoringHandle
    parts: list[_Part]


class ScoringQueue:
    """Scoring requests from submission to answer; one step of theirs is in flight at most.

    Args:
        num_promised: blocks that generation counts on beyond those it holds.
        report: is told what became of each request, and whose it was.

    Attributes:
        num_waiting, num_active: requests that hold no blocks yet, and those that do.
        num_bad: requests ended by unusable logits. num_failed: steps that raised.
        num_tokens: prompt tokens computed.
        prefix_queries, prefix_hits: tokens of queries looked up, and found computed.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        pool: BlockPool,
        runner: ScoringRunner,
        *,
        num_promised: Callable[[], int],
        report: Callable[[bytes, ItemScores], None],
    ) -> None:
        self._max_tokens = config.step_tokens
        self._by_priority = config.policy == "priority"
        self._block_size = cache.block_size
        self._prefix_caching = cache.prefix_caching
        self._pool = pool
        self._runner = runner
        self._num_promised = num_promised
        self._report = report
        self._unfinished: dict[tuple[bytes, int], ScoringProgress] = {}
        self._waiting: list[tuple[tuple[int, int], ScoringProgress]] = []
        self._active: list[ScoringProgress] = []
        self._in_flight: _Step | None = None
        self._launched: _Step | None = None
        self._turn = 0
        self._promised = 0
        self.num_bad = 0
        self.num_failed = 0
        self.num_tokens = 0
        self.prefix_queries = 0
        self.prefix_hits = 0

    @property
    def has_work(self) -> bool:
        """Whether a turn of `launch` and `read_back` has anything to do."""
        return bool(self._unfinished) or self._in_flight is not None

    @property
    def num_active(self) -> int:
        return len(self._active)

    @property
    def num_waiting(self) -> int:
        return len(self._unfinished) - len(self._active)

    @property
    def held_blocks(self) -> list[list[int]]:
        """Every holder's blocks, for `BlockPool.check`."""
        return [blocks for work in self._active for blocks in (work.blocks, work.spare)]

    def submit(self, frontend: bytes, request: ScoringRequest, arrival: int) -> None:
        """Queue a request, which must fit the context."""
        work = ScoringProgress.of(frontend, request, arrival, self._block_size)
        self._unfinished[frontend, request.handle] = work
        priority = request.priority if self._by_priority else 0
        heapq.heappush(self._waiting, ((priority, arrival), work))

    def abort(self, frontend: bytes, handle: int) -> None:
        """End a request; one that ended or is unknown is left alone."""
        if work := self._unfinished.get((frontend, handle)):
            self._end(work, Finish.ABORT)

    # -- a turn -----------------------------------------------------------------------------

    def launch(self) -> None:
        """Launch a step of whatever can be computed now."""
        self._launched = None
        if not self._unfinished:
            return
        self._promised = self._num_promised()
        self._admit()
        rows: list[Rows] = []
        parts: list[_Part] = []
        borrowed: list[int] = []
        budget = self._max_tokens
        for work in self._in_turn():
            if not budget:
                break
            first, spent = work.num_planned, len(rows)
            budget = self._fill(work, rows, borrowed, budget)
            if len(rows) > spent:
                work.last_turn = self._turn
                parts.append(_Part(work, first, work.num_planned - first))
        self._turn += 1
        if rows:
            plan = make_plan(rows, self._block_size)
            self.num_tokens += len(plan.token_ids)
            self._launched = _Step(self._runner.launch_scoring(plan), parts)
        self._pool.release(borrowed)

    def read_back(self, timeout_s: float | None) -> None:
        """Enter the results of the step before the one just launched.

        Raises:
            RunnerLostError, TimeoutError: as `StepHandle.wait`.
        """
        step, self._in_flight = self._in_flight, self._launched
        if step is None:
            return
        try:
            result = step.handle.wait(timeout_s)
        except (TimeoutError, RunnerLostError):
            raise
        except Exception as error:  # its requests end with the reason, the others go on
            self.num_failed += 1
            message = f"{type(error).__name__}: {error}".splitlines()[0]
            logger.error("a step of scoring failed: %s", message)
            for part in step.parts:
                self._end(part.work, Finish.ERROR, message)
            return
        start = 0
        for part in step.parts:
            self._enter(part, result, start)
            start += part.count

    def _enter(self, part: _Part, result: ScoringResult, start: int) -> None:
        work, width = part.work, part.work.values.shape[1]
        if work.ended or not part.count:
            return
        mine, there = slice(start, start + part.count), slice(part.first, part.first + part.count)
        if np.isnan(result.others[mine]).any():
            self.num_bad += 1
            self._end(work, Finish.NAN)
            return
        work.values[there] = result.values[mine, :width]
        work.others[there] = result.others[mine]
        if not work.num_read and self._prefix_caching:  # the query was computed clean
            for block, block_hash in zip(work.blocks, work.hashes, strict=True):
                self._pool.register(block, block_hash, drafted=False)
        work.num_read += part.count
        if work.num_read == len(work.others):
            self._end(work, Finish.LENGTH)

    def _end(self, work: ScoringProgress, finish: Finish, error: str | None = None) -> None:
        if work.ended:
            return
        work.ended = True
        del self._unfinished[work.frontend, work.request.handle]
        if work in self._active:
            self._active.remove(work)
            self._pool.release(work.spare)
            self._pool.release(work.blocks)
        done = finish == Finish.LENGTH
        scores = ItemScores(
            handle=work.request.handle,
            finish=finish,
            num_cached=work.num_cached,
            values=work.values if done else work.values[:0],
            others=work.others if done else work.others[:0],
            error=error,
        )
        self._report(work.frontend, scores)

    # -- admission --------------------------------------------------------------------------

    def _admit(self) -> None:
        """Give waiting requests their blocks, in order, while there are enough."""
        while self._waiting:
            work = self._waiting[0][1]
            if not work.ended and not self._admit_one(work):
                return
            heapq.heappop(self._waiting)

    def _admit_one(self, work: ScoringProgress) -> bool:
        pool, size = self._pool, self._block_size
        shared = pool.match(work.hashes) if self._prefix_caching else []
        num_query, num_spare = work.shared_len // size, -(-work.longest // size)
        need = num_query - len(shared) + num_spare
        if need > pool.num_free - pool.num_idle(shared) - self._promised:
            return False
        pool.share(shared)
        granted = pool.grant(need)
        assert granted is not None, "blocks were counted before admission"
        work.blocks = shared + granted[num_spare:]
        work.spare = granted[:num_spare]
        work.num_computed = work.num_cached = len(shared) * size
        self.prefix_queries += len(work.request.query_token_ids)
        self.prefix_hits += work.num_cached
        self._active.append(work)
        return True

    # -- planning ---------------------------------------------------------------------------

    def _in_turn(self) -> list[ScoringProgress]:
        """Active requests with something to plan, those served longest ago first."""
        todo = [work for work in self._active if not work.planned]
        if self._by_priority:
            return sorted(todo, key=lambda work: work.rank)
        return sorted(todo, key=lambda work: work.rank[1:])

    def _fill(
        self, work: ScoringProgress, rows: list[Rows], borrowed: list[int], budget: int
    ) -> int:
        """Add what of a request fits into the step; the budget that is left."""
        if count := self._fitting(work.shared_len - work.num_computed, budget):
            rows.append(work.query_rows(count))
            budget -= count
        if work.num_computed < work.shared_len:
            return budget
        spare = work.spare
        if not work.planned and self._is_long(work):
            remaining = int(work.lens[work.next_item]) - work.num_split
            if count := min(remaining, budget):
                rows.append(work.split_rows(count))
            if count < remaining:
                return budget - count
            budget -= count
            spare = []  # this step writes there already
        return budget - self._add_items(work, rows, borrowed, spare, budget)

    def _fitting(self, count: int, budget: int) -> int:
        """Of `count` tokens, how many go into the step: all, or some of what never fits whole."""
        if count <= budget:
            return count
        return budget if count > self._max_tokens else 0

    def _is_long(self, work: ScoringProgress) -> bool:
        return bool(work.num_split or work.lens[work.next_item] > self._max_tokens)

    def _add_items(
        self,
        work: ScoringProgress,
        rows: list[Rows],
        borrowed: list[int],
        spare: list[int],
        budget: int,
    ) -> int:
        """Add the next items that fit, the first in `spare`; how many tokens they are."""
        lens = work.lens[work.next_item : work.next_item + budget]
        if work.longest > self._max_tokens:  # up to the next that has to be split
            lens = lens[: int(np.argmax(np.append(lens > self._max_tokens, True)))]
        if not len(lens):
            return 0
        num_blocks = -(-lens // self._block_size)
        own = spare[: int(num_blocks[0])]
        available = max(self._pool.num_free - self._promised, 0)
        count = min(
            int(np.searchsorted(np.cumsum(lens), budget, side="right")),
            int(np.searchsorted(np.cumsum(num_blocks) - len(own), available, side="right")),
        )
        if not count:
            return 0
        num_blocks = num_blocks[:count]
        granted = self._pool.grant(int(num_blocks.sum()) - len(own))
        assert granted is not None, "blocks were counted before they were granted"
        borrowed += granted
        rows.append(work.item_rows(count, block_tables(own + granted, num_blocks)))
        return int(lens[:count].sum())
