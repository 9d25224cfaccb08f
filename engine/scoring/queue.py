"""Runs scoring requests beside generation, in one step of their own each turn. No torch.

Generation and scoring share nothing but blocks. Steps run in the order they are launched, so the
next holder of a released block writes it after the step that used it. So an item's blocks are
released when its step is launched, and a request that ends early releases its blocks at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from engine.adapters.registry import AdapterRegistry
from engine.config import CacheConfig, SchedulerConfig
from engine.contracts.adapters import AdapterVersion, no_adapter
from engine.contracts.runner import StepFailedError, result_of
from engine.contracts.scoring import ScoringRunner
from engine.memory.blocks import BlockPool
from engine.memory.snapshots import SnapshotPool
from engine.messages.request import ScoringRequest
from engine.messages.step_output import Finish, ItemScores
from engine.scoring.holdings import ScoringHoldings
from engine.scoring.line import ScoringLine
from engine.scoring.packing import make_plan
from engine.scoring.progress import ScoringProgress
from engine.scoring.reading import ReadSpan, ScoringReads
from engine.scoring.states import num_reserved
from engine.scoring.step import ScoringStepRows

logger = logging.getLogger(__name__)


class ScoringQueue:
    """Holds scoring requests from submission to answer, with at most one of their steps in flight.

    Args:
        num_promised: gives the number of blocks promised to generation beyond those it holds.
        report: called with the frontend and the end of each request.
        snapshots: of states, where layers keep them.
        adapters: that requests may have.

    Attributes:
        num_bad: requests ended by unusable logits.
        num_failed: steps that raised.
        num_tokens: prompt tokens computed.
        holdings: the blocks and snapshots of active requests.
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
        snapshots: SnapshotPool | None = None,
        adapters: AdapterRegistry | None = None,
    ) -> None:
        self._max_tokens = config.step_tokens
        self._by_priority = config.policy == "priority"
        self._block_size = cache.block_size
        self._pool = pool
        self._runner = runner
        self._num_promised = num_promised
        self._report = report
        self._snapshots = snapshots
        self._adapters = adapters
        self._unfinished: dict[tuple[bytes, int], ScoringProgress] = {}
        self._line = ScoringLine(by_priority=self._by_priority)
        self.holdings = ScoringHoldings(cache, pool, snapshots, adapters)
        self._in_flight: ScoringReads | None = None
        self._launched: ScoringReads | None = None
        self._turn = self._num_updates = 0
        self.num_bad = 0
        self.num_failed = 0
        self.num_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether a turn of `launch` and `read_back` has anything to do."""
        return bool(self._unfinished) or self._in_flight is not None

    @property
    def num_active(self) -> int:
        """The number of requests that hold blocks."""
        return len(self.holdings.active)

    @property
    def num_waiting(self) -> int:
        """The number of requests that hold no blocks yet."""
        return len(self._unfinished) - len(self.holdings.active)

    def submit(self, frontend: bytes, request: ScoringRequest, arrival: int) -> None:
        """Queue a request, which must fit the context."""
        adapter = None
        if self._adapters is not None and request.adapter:
            adapter = self._adapters.take(request.adapter, digest=request.adapter_digest)
        progress = self._progress(frontend, request, arrival, adapter)
        self._unfinished[frontend, request.handle] = progress
        pool = self._snapshots
        if pool is not None and pool.num_snapshots < num_reserved(progress.layout):
            self._end(progress, Finish.ERROR, "there is no memory for snapshots of states")
            return
        if request.adapter and adapter is None:
            words = no_adapter(request.adapter, request.adapter_digest)
            self._end(progress, Finish.ADAPTER, words)
        else:
            self._begin(progress)

    def _begin(self, progress: ScoringProgress) -> None:
        """Let a request wait for blocks, or before that for its adapter."""
        adapter = progress.adapter
        if self._adapters is None or adapter is None or adapter.is_there:
            self._line.push(progress)
        else:
            self._adapters.await_read(adapter, partial(self._go_on, progress))

    def _go_on(self, progress: ScoringProgress, error: str | None) -> None:
        """Let a request wait for blocks whose adapter is there, or say why it is not."""
        if error is not None:
            self._end(progress, Finish.ADAPTER, error)
        elif not progress.ended:
            progress.hash_query()
            self._line.push(progress)

    def abort(self, frontend: bytes, handle: int) -> None:
        """End a request; one that ended or is unknown is left alone."""
        if progress := self._unfinished.get((frontend, handle)):
            self._end(progress, Finish.ABORT)

    def abort_all(self, frontend: bytes) -> None:
        """End every request of a frontend."""
        for _, handle in [key for key in self._unfinished if key[0] == frontend]:
            self.abort(frontend, handle)

    def cancel_all(self) -> int:
        """End every request by a command; returns their number."""
        found = list(self._unfinished.values())
        for progress in found:
            self._end(progress, Finish.CANCELED)
        return len(found)

    # -- rests ------------------------------------------------------------------------------

    @property
    def is_launched(self) -> bool:
        """Whether a step was launched that was not read back."""
        return self._in_flight is not None

    @property
    def only_waits(self) -> bool:
        """Whether nothing is to be launched, and the step in flight is still computed."""
        step = self._in_flight
        if step is None or step.handle.is_there or self.num_waiting:
            return False
        return all(progress.planned for progress in self.holdings.active)

    @property
    def num_unparked(self) -> int:
        """Requests that have not ended, but for those that are parked."""
        return len(self._unfinished) - self._line.num_parked

    def park(self) -> None:
        """Let requests that come from now on wait for `unpark`."""
        self._line.park()

    def unpark(self) -> None:
        """Let the parked requests wait for blocks."""
        self._line.unpark()

    def restart(self, *, num_updates: int | None = None) -> None:
        """Let all requests begin again, with nothing computed; no step is in flight.

        Args:
            num_updates: how often the weights were written, where it has changed.
        """
        if num_updates is not None:
            self._num_updates = num_updates
        self._line.clear()
        for old in list(self._unfinished.values()):
            if old in self.holdings.active:
                self.holdings.let_go(old, query_hash=None)
            old.ended = True
            fresh = self._progress(old.frontend, old.request, old.arrival, old.adapter)
            self._unfinished[old.frontend, old.request.handle] = fresh
            self._begin(fresh)

    def _progress(
        self,
        frontend: bytes,
        request: ScoringRequest,
        arrival: int,
        adapter: AdapterVersion | None,
    ) -> ScoringProgress:
        return ScoringProgress.of(
            frontend,
            request,
            arrival,
            self._block_size,
            num_updates=self._num_updates,
            adapter=adapter,
        )

    # -- a turn -----------------------------------------------------------------------------

    def launch(self, *, held: bool = False) -> None:
        """Launch a step of the items and parts of queries that fit its budget; none if `held`."""
        self._launched = None
        if held or not self._unfinished:
            return
        promised = self._num_promised()
        self._admit(promised)
        step = ScoringStepRows(self._pool, self._max_tokens, promised, self._snapshots)
        spans: list[ReadSpan] = []
        for progress in self._in_turn():
            if not step.budget:
                break
            first = progress.num_planned
            if step.add(progress):
                progress.last_turn = self._turn
                spans.append(ReadSpan(progress, first, progress.num_planned - first))
        self._turn += 1
        if step.rows:
            keeps_states = self._snapshots is not None
            plan = make_plan(step.rows, self._block_size, keeps_states=keeps_states)
            if self._adapters is not None:
                plan.adapter_loads.extend(self._adapters.take_loads())
            self.num_tokens += len(plan.token_ids)
            self._launched = ScoringReads(self._runner.launch_scoring(plan), spans)
        step.release()

    def read_back(self) -> None:
        """Enter the result of the step before the one just launched; raises as `result_of`."""
        step, self._in_flight = self._in_flight, self._launched
        if step is None:
            return
        try:
            result = result_of(step.handle)
        except StepFailedError as failure:
            self.num_failed += 1
            logger.error("a step of scoring failed: %s", failure)
            for span in step.spans:
                self._end(span.progress, Finish.ERROR, str(failure))
            return
        for span, is_good in step.enter(result):
            if is_good:
                self._count(span)
            else:
                self.num_bad += 1
                self._end(span.progress, Finish.NAN)

    def _count(self, span: ReadSpan) -> None:
        """Count positions as read, and end the request with the last of them."""
        progress = span.progress
        if not progress.num_read:
            self.holdings.register(progress)
        progress.num_read += span.count
        if progress.num_read == len(progress.others):
            self._end(progress, Finish.LENGTH)

    def _end(self, progress: ScoringProgress, finish: Finish, error: str | None = None) -> None:
        if progress.ended:
            return
        progress.ended = True
        self._line.discard(progress)
        del self._unfinished[progress.frontend, progress.request.handle]
        if progress in self.holdings.active:
            is_clean = finish == Finish.LENGTH and self.holdings.prefix_caching and progress.hashes
            self.holdings.let_go(progress, progress.hashes[-1] if is_clean else None)
        if self._adapters is not None and progress.adapter is not None:
            self._adapters.leave(progress.adapter)
        self._report(progress.frontend, progress.scores(finish, error))

    # -- admission --------------------------------------------------------------------------

    def _admit(self, promised: int) -> None:
        """Give waiting requests their blocks in order, while there are enough."""
        while (progress := self._line.first) is not None:
            if not self.holdings.admit(progress, promised):
                return
            self._line.discard(progress)

    # -- planning ---------------------------------------------------------------------------

    def _in_turn(self) -> list[ScoringProgress]:
        """Active requests that are not planned whole, the one served longest ago first."""
        todo = [progress for progress in self.holdings.active if not progress.planned]
        if self._by_priority:
            return sorted(todo, key=lambda progress: progress.rank)
        return sorted(todo, key=lambda progress: progress.rank[1:])
