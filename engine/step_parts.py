"""The parts that steps go through, put together; what is counted of them all. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine.adapters.registry import AdapterRegistry
from engine.config import EngineConfig
from engine.contracts.adapters import AdapterReader
from engine.contracts.info import EngineInfo
from engine.contracts.runner import Runner
from engine.memory.blocks import BlockPool
from engine.messages.step_output import Finish
from engine.plan import StepPlan
from engine.planning.arrivals import Arrivals
from engine.planning.drafting import DraftCounts, DraftRules
from engine.planning.outputs import OutputRing
from engine.planning.pace import Pace
from engine.planning.prefixes import PrefixIndex
from engine.planning.routes import RouteReports
from engine.planning.row_snapshots import row_snapshots
from engine.planning.scheduler import Scheduler
from engine.planning.step_counts import StepCounts
from engine.planning.timings import Timings
from engine.planning.unfinished import UnfinishedChoices
from engine.rows import Choice, RowTable
from engine.scoring.queue import ScoringQueue
from engine.stats import DraftStats, EngineStats
from engine.step_pipeline import StepPipeline
from engine.structured.grammars import Grammars
from engine.structured.prerequisites import Prerequisites


class StepParts:
    """What an engine plans, launches and reports its steps by, each the owner of its state.

    Args:
        drafting: as it was begun for this engine.
        save: called with a row whose choice is about to be preempted.
        end: called with choices that cannot begin, why, and the words of the error.
        fail: called with the plan of a step that raised, and with what it raised.
    """

    def __init__(
        self,
        config: EngineConfig,
        info: EngineInfo,
        runner: Runner,
        drafting: DraftRules,
        grammars: Grammars | None,
        adapters: AdapterReader | None,
        *,
        save: Callable[[int], None],
        end: Callable[[Iterable[Choice], Finish, str | None], None],
        fail: Callable[[StepPlan, str], None],
    ) -> None:
        self.runner, self.drafting, self.grammars = runner, drafting, grammars
        self.adapters: AdapterRegistry | None = None
        if config.adapters is not None and adapters is not None:
            self.adapters = AdapterRegistry(config.adapters, adapters)
        # One place more than the context: the last drawn token is kept but never computed.
        max_new = 1 + drafting.num_tokens
        self.pool = BlockPool(info.num_blocks)
        self.table = RowTable(info.max_rows, info.max_model_len + 1, max_new)
        self.ring = OutputRing(info.max_rows, max_new, report_times=config.report_times)
        self.snapshots = row_snapshots(config.cache, info, drafting, self.table)
        self.prefixes = PrefixIndex(config.cache, self.pool, self.table, self.snapshots)
        pace = Pace(config.scheduler.max_gap_s)
        self.scheduler = self._make_scheduler(config, pace, save)
        self.scoring = self._make_scoring(config)
        self.drafts = DraftCounts(info.max_rows, k) if (k := drafting.num_tokens) else None
        self.routes = RouteReports(
            runner, self.table, config.cache.block_size, self.ring.add_routes
        )
        self.timings, self.counts = Timings(), StepCounts()
        self.unfinished = UnfinishedChoices(self.scheduler.enqueue)
        self.prerequisites = Prerequisites(
            grammars, self.adapters, on_ready=self.unfinished.start, on_failure=end
        )
        self.arrivals = Arrivals(config.sampling.seed, self.prerequisites.begin)
        self.pipeline = StepPipeline(runner, self.table, pace, grammars, fail)

    def _make_scheduler(
        self, config: EngineConfig, pace: Pace, save: Callable[[int], None]
    ) -> Scheduler:
        return Scheduler(
            config.scheduler,
            config.cache.block_size,
            self.pool,
            self.table,
            self.prefixes,
            on_preempt=save,
            drafting=self.drafting,
            pace=pace,
            snapshots=self.snapshots,
            adapters=self.adapters,
        )

    def _make_scoring(self, config: EngineConfig) -> ScoringQueue:
        return ScoringQueue(
            config.scheduler,
            config.cache,
            self.pool,
            self.runner,
            num_promised=self.scheduler.num_promised,
            report=self.ring.add_item_scores,
            snapshots=None if self.snapshots is None else self.snapshots.pool,
            adapters=self.adapters,
        )

    def stats(self) -> EngineStats:
        """Gauges of now and counters since the start."""
        num_running, scoring = len(self.table.running), self.scoring
        counts, (looked_up, found) = self.counts, self.scheduler.prefix_counts
        return EngineStats(
            num_running=num_running + scoring.num_active,
            num_waiting=self.unfinished.count - num_running + scoring.num_waiting,
            kv_blocks_used=self.pool.num_used,
            kv_blocks_total=self.pool.num_blocks - 1,
            num_steps=counts.num_steps,
            num_preemptions=self.scheduler.num_preemptions,
            prefix_cache_queries=looked_up + scoring.holdings.prefix_queries,
            prefix_cache_hits=found + scoring.holdings.prefix_hits,
            prompt_tokens_computed=counts.prompt_tokens_computed + scoring.num_tokens,
            nan_rows=counts.nan_rows + scoring.num_bad,
            empty_rows=counts.empty_rows,
            failed_steps=counts.failed_steps + scoring.num_failed,
            sampler_rows=self.runner.rows_by_path,
            drafts=None if self.drafts is None else DraftStats.of(self.drafts.total),
            timings=self.timings.stats(),
            grammars=None if self.grammars is None else self.grammars.stats(),
            snapshots=None if self.snapshots is None else self.snapshots.pool.stats(),
            adapters=None if self.adapters is None else self.adapters.stats(),
            num_deferred=self.prerequisites.num_waiting,
        )

    def check(self) -> None:
        """Assert that blocks and rows agree; for tests and idle moments."""
        held = [self.table.blocks[row] for row in self.table.running]
        self.pool.check(held + self.scoring.holdings.held_blocks)
        if self.snapshots is not None:
            self.snapshots.check(self.scoring.holdings.reserved_snapshots)
        self.unfinished.check()
        if self.adapters is not None:
            num_scoring = self.scoring.num_active + self.scoring.num_waiting
            self.adapters.check(is_idle=not self.unfinished.count + num_scoring)
        assert self.unfinished.count or not self.table.running
