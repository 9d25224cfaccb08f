"""The engine's loop: requests in, steps planned and launched, results read back, outputs out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from engine.adapters.registry import AdapterRegistry
from engine.config import EngineConfig
from engine.contracts.adapters import AdapterReader
from engine.contracts.control import MemoryPart
from engine.contracts.info import EngineInfo
from engine.contracts.runner import Runner
from engine.contracts.weights import AnyWeightCommand, WeightReply
from engine.memory.blocks import BlockPool
from engine.messages.request import Request, ScoringRequest
from engine.messages.step_output import Finish, StepOutput
from engine.plan import StepPlan
from engine.planning.arrivals import Arrivals
from engine.planning.drafting import NO_DRAFTS, DraftCounts, DraftRules
from engine.planning.outputs import OutputRing
from engine.planning.pace import Pace
from engine.planning.prefixes import PrefixIndex
from engine.planning.prompt_parts import join_prompt_parts
from engine.planning.routes import RouteReports
from engine.planning.row_snapshots import row_snapshots
from engine.planning.scheduler import Scheduler
from engine.planning.settle import Settled
from engine.planning.step_counts import StepCounts
from engine.planning.timings import Timings
from engine.planning.unfinished import UnfinishedChoices
from engine.rows import Choice, RowTable
from engine.scoring.queue import ScoringQueue
from engine.stats import DraftStats, EngineStats
from engine.step_pipeline import EnteredStep, StepPipeline
from engine.structured.grammars import Failures, Grammars
from engine.structured.prerequisites import Prerequisites

logger = logging.getLogger(__name__)


class Engine:
    """Continuous batching over a runner, one step in flight while the next is planned.

    Single-threaded: one loop calls all methods.
    """

    def __init__(
        self,
        config: EngineConfig,
        info: EngineInfo,
        runner: Runner,
        drafting: DraftRules = NO_DRAFTS,
        grammars: Grammars | None = None,
        adapters: AdapterReader | None = None,
    ) -> None:
        self.info = info
        self._drafting = drafting = drafting.begun()
        self.adapters = None
        if config.adapters is not None and adapters is not None:
            self.adapters = AdapterRegistry(config.adapters, adapters)
        self._grammars = grammars
        self._runner = runner
        self._pool = BlockPool(info.num_blocks)
        # One place more than the context: the last drawn token is kept but never computed.
        max_new = 1 + drafting.num_tokens
        self._table = RowTable(info.max_rows, info.max_model_len + 1, max_new)
        self._ring = OutputRing(info.max_rows, max_new, report_times=config.report_times)
        self._snapshots = row_snapshots(config.cache, info, drafting, self._table)
        self._prefixes = PrefixIndex(config.cache, self._pool, self._table, self._snapshots)
        pace = Pace(config.scheduler.max_gap_s)
        self._scheduler = Scheduler(
            config.scheduler,
            config.cache.block_size,
            self._pool,
            self._table,
            self._prefixes,
            on_preempt=self._save,
            drafting=drafting,
            pace=pace,
            snapshots=self._snapshots,
            adapters=self.adapters,
        )
        self._drafts = DraftCounts(info.max_rows, k) if (k := drafting.num_tokens) else None
        self._scoring = ScoringQueue(
            config.scheduler,
            config.cache,
            self._pool,
            runner,
            num_promised=self._scheduler.num_promised,
            report=self._ring.add_item_scores,
            snapshots=None if self._snapshots is None else self._snapshots.pool,
            adapters=self.adapters,
        )
        self._routes = RouteReports(
            runner, self._table, config.cache.block_size, self._ring.add_routes
        )
        self._timings = Timings()
        self._unfinished = UnfinishedChoices(self._scheduler.enqueue)
        self._prerequisites = Prerequisites(
            grammars, self.adapters, on_ready=self._unfinished.start, on_failure=self._end
        )
        self._arrivals = Arrivals(config.sampling.seed, self._prerequisites.begin)
        self._pipeline = StepPipeline(runner, self._table, pace, grammars, self._fail)
        self._counts, self._is_held = StepCounts(), False

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do; nothing where choices only wait for their grammars."""
        if self._is_held:
            return not self.is_quiet
        if self._prerequisites.has_read or not self._pipeline.is_empty:
            return True
        generates = self._unfinished.count > self._prerequisites.num_waiting
        return generates or self._scoring.has_work or self._ring.has_output

    def on_compiled(self, wake: Callable[[], None]) -> None:
        """Let `wake` be called, on another thread, when a grammar or adapter is there."""
        self._prerequisites.on_there(wake)

    def submit(self, frontend: bytes, request: Request) -> None:
        """Queue a request's choices; those after the first wait for its prompt to be computed."""
        choices = self._arrivals.choices(frontend, request)
        self._timings.queued(choices)
        self._unfinished.add(choices)
        if refusal := self._refusal(request):
            self._end(choices, Finish.ERROR, refusal)
        elif not self._prerequisites.adopt(choices):
            self._end(choices, Finish.ADAPTER, f"no adapter {request.adapter!r} is loaded")
        elif request.is_constrained and self._grammars is None:
            self._end(choices, Finish.GRAMMAR, self.info.grammar_error or "no grammars")
        else:
            self._arrivals.begin(choices)

    def score(self, frontend: bytes, request: ScoringRequest) -> None:
        """Queue a scoring request. Frontends have checked that it fits the context."""
        self._scoring.submit(frontend, request, self._arrivals.number())

    def _refusal(self, request: Request) -> str | None:
        """Why a request can never run, if so. Frontends check too; this keeps the loop alive."""
        count, most = len(request.prompt_token_ids), self.info.max_model_len
        fits = 1 <= count <= most
        return None if fits else f"a prompt of {count} tokens; the context holds {most}"

    def abort(self, frontend: bytes, handle: int, choice_idx: int = -1) -> None:
        """End one choice, or all with -1; choices that ended or are unknown are left alone."""
        self._scoring.abort(frontend, handle)
        self._end(self._unfinished.find(frontend, handle, choice_idx), Finish.ABORT)

    def abort_all(self, frontend: bytes) -> None:
        """End everything of a frontend that reads no more."""
        self._scoring.abort_all(frontend)
        self._end(self._unfinished.of_frontend(frontend), Finish.ABORT)

    def abort_named(self, names: tuple[str, ...] | None) -> int:
        """End requests of all frontends by `Request.name`, all with None; returns their number."""
        choices = self._unfinished.named(names)
        num_scoring = self._scoring.cancel_all() if names is None else 0
        self._end(choices, Finish.CANCELED)
        return num_scoring + len({(c.frontend, c.request.handle) for c in choices})

    def run_weights(self, command: AnyWeightCommand) -> WeightReply:
        """Read or change weights, between two steps; raises `WeightUpdateError`."""
        return self._runner.weights(command)

    def give_back(self, parts: Sequence[MemoryPart], *, keeps_weights: bool) -> None:
        """Give parts of the memory back, between two steps; raises `ControlError`."""
        self._runner.give_back(parts, keeps_weights=keeps_weights)

    def take_again(self, parts: Sequence[MemoryPart]) -> None:
        """Take parts of the memory again, between two steps."""
        self._runner.take_again(parts)

    @property
    def has_drafter_weights(self) -> bool:
        """Whether there is a drafter that has weights, switched off or on."""
        return self._drafting.has_cache

    def switch_drafts(self, *, off: bool) -> None:
        """Draft from the next step on, or no more."""
        self._drafting.switch.is_off = off

    def change_weights(self, version: str, num_updates: int) -> None:
        """Note that weights were written, the drafter's too, between two steps.

        Keys that were computed before are found by no request after. Choices that have drawn keep
        theirs; others, and scoring requests, begin again, so that no number mixes weights.
        """
        self._ring.weight_version = version
        self._prefixes.num_updates = num_updates
        self._scheduler.preempt_all(undrawn_only=True)
        for choice in self._unfinished.waiting:
            choice.hashes = None
        self._scoring.restart(num_updates=num_updates)

    def rename_weights(self, version: str) -> None:
        """Call the weights by another version, between two steps."""
        self._ring.weight_version = version

    # -- between steps ----------------------------------------------------------------------

    def hold(self) -> None:
        """Plan no more steps; those launched are still read back."""
        self._is_held = True

    def release(self) -> None:
        """Plan steps again, of the requests that came meanwhile too."""
        self._is_held = False
        self._arrivals.unpark()
        self._scoring.unpark()

    def park(self) -> None:
        """Let requests that come from now on wait for `release`, while the others end."""
        self._arrivals.park()
        self._scoring.park()

    @property
    def num_ending(self) -> int:
        """Choices and scoring requests that have not ended, but for those that are parked."""
        return self._unfinished.count - self._arrivals.num_parked + self._scoring.num_unparked

    @property
    def num_holding(self) -> int:
        """Choices and scoring requests that hold blocks."""
        return len(self._table.running) + self._scoring.num_active

    @property
    def is_quiet(self) -> bool:
        """Whether no step was launched that was not read back, and all outputs are collected."""
        is_empty = self._pipeline.is_empty and not self._scoring.is_launched
        return is_empty and not self._ring.has_output

    def forget_prefixes(self, *, restarts: bool) -> None:
        """Forget what computed blocks and states can be found by.

        Args:
            restarts: running choices and scoring requests compute their keys again.
        """
        if restarts:
            self._scheduler.preempt_all()
            self._scoring.restart()
        self._pool.forget_all()
        if self._snapshots is not None:
            self._snapshots.pool.forget_all()

    def step(self) -> list[tuple[bytes, StepOutput]]:
        """Launch the next step, then read back the one before it; returns outputs by frontend.

        One launch becomes two where rows draw under a grammar: the forward at once, the draw when
        the step before is read back and masks are filled, both while the forward runs. The step
        after it is planned meanwhile and launched right after that draw, so that the device waits
        for neither. Steps of scoring run between the two, after the draw, which reads what their
        forwards would overwrite.
        """
        self._prerequisites.settle()
        if not self._pipeline.is_ahead:
            self._launch(self._plan())
        if (awaiting := self._pipeline.awaiting_draw) is not None:
            self._draw(awaiting)
        else:
            self._scoring.launch(held=self._is_held)
            self._keep(self._enter())
        self._pipeline.advance()
        self._scoring.read_back()
        if self._is_held and self._pipeline.is_empty:
            self._ring.flush(self._table.running)
        return self._ring.collect() if self._ring.has_output else []

    def _plan(self) -> StepPlan | None:
        return None if self._is_held else self._scheduler.plan()

    def _launch(self, plan: StepPlan | None) -> None:
        if plan is None:
            return
        self._timings.started(admission.choice for admission in plan.admissions)
        for admission in plan.admissions:
            self._ring.open(admission.row, admission.choice)
            if self._drafts is not None:
                self._drafts.open(admission.row, admission.choice)
        if self.adapters is not None:
            plan.adapter_loads = self.adapters.take_loads()
        self._pipeline.launch(plan)

    def _draw(self, plan: StepPlan) -> None:
        """Issue the draw of a step that awaits masks, and launch the step after it."""
        assert self._grammars is not None, "only choices with a grammar await masks"
        entered = self._enter()
        filling = self._grammars.fill(plan)
        self._keep(entered)
        following = self._plan()
        masks, failures = self._grammars.filled(filling)
        self._pipeline.draw(masks)
        self._scoring.launch(held=self._is_held)
        self._launch(following)
        self._end_failed(failures)

    def _save(self, row: int) -> None:
        """Save what a row holds, because its choice is about to be preempted."""
        self._ring.flush([row])
        self._table.choice(row).keep_drafts()

    def _enter(self) -> EnteredStep | None:
        return self._pipeline.enter(alone=not self._scoring.has_work)

    def _keep(self, entered: EnteredStep | None) -> None:
        """Report what a step drew, and go on from its end: rows, prefixes, waiting choices."""
        if entered is None:
            return
        plan, result, settled, failures = entered
        self._counts.add(plan, settled)
        self._timings.stepped(plan.num_tokens)
        self._timings.drew(self._table.choices_of(settled.first_drawn))
        if self._drafts is not None:
            self._drafts.add(settled)
            self._drafting.learn(settled)
        for frontend, prompt_logprobs in join_prompt_parts(self._table, plan, result):
            self._ring.add_prompt_logprobs(frontend, prompt_logprobs)
        self._ring.add(settled, result.logprobs)
        self._finish_rows(settled)
        self._end_failed(failures)
        self._unfinished.release_children(self._table)

    def _finish_rows(self, settled: Settled) -> None:
        if not np.count_nonzero(settled.finish):  # all are running
            self._prefixes.register(settled.rows)
            return
        failed = settled.finish == Finish.NAN
        self._prefixes.register(settled.rows[~failed])
        ended: list[int] = settled.rows[settled.finish != Finish.RUNNING].tolist()
        self._routes.read(ended)
        for row in ended:
            self._forget(self._table.choice(row))
            self._scheduler.release(row)

    def _end(self, choices: Iterable[Choice], finish: Finish, error: str | None = None) -> None:
        """End choices outside the course of a step, running or waiting; there may be thousands."""
        choices = list(choices)
        for choice in choices:
            self._forget(choice)
        waiting = [choice for choice in choices if choice.row is None]
        rows = [choice.row for choice in choices if choice.row is not None]
        if waiting:
            self._ring.end_waiting(waiting, finish, error)
        if rows:
            codes = np.full(len(rows), finish, dtype=np.uint8)
            self._ring.emit(np.array(rows, dtype=np.int64), codes, error)
            self._routes.read(rows)
        for row in rows:
            self._scheduler.release(row)

    def _end_failed(self, failures: Failures) -> None:
        """End choices whose matchers failed."""
        for choice, finish, message in failures:
            logger.warning("a choice ended: %s", message)
            self._end([choice], finish, message)

    def _fail(self, plan: StepPlan, message: str) -> None:
        """End the choices of a step that raised; the others go on."""
        self._counts.failed_steps += 1
        logger.error("a step of %d rows failed: %s", len(plan.rows), message)
        self._end([c for c in plan.choices if not c.ended], Finish.ERROR, message)

    def _forget(self, choice: Choice) -> None:
        """Strike an ended choice from the books; choices that waited for its prompt go on."""
        self._unfinished.end(choice)
        self._prerequisites.forget(choice)
        row, known = choice.row, len(choice.token_ids)
        known = known if row is None else int(self._table.num_known[row])
        self._timings.ended(choice, known - choice.prompt_len)
        choice.keep_drafts()

    def stats(self) -> EngineStats:
        """Gauges of now and counters since the start."""
        num_running, scoring = len(self._table.running), self._scoring
        counts, (looked_up, found) = self._counts, self._scheduler.prefix_counts
        return EngineStats(
            num_running=num_running + scoring.num_active,
            num_waiting=self._unfinished.count - num_running + scoring.num_waiting,
            kv_blocks_used=self._pool.num_used,
            kv_blocks_total=self._pool.num_blocks - 1,
            num_steps=counts.num_steps,
            num_preemptions=self._scheduler.num_preemptions,
            prefix_cache_queries=looked_up + scoring.holdings.prefix_queries,
            prefix_cache_hits=found + scoring.holdings.prefix_hits,
            prompt_tokens_computed=counts.prompt_tokens_computed + scoring.num_tokens,
            nan_rows=counts.nan_rows + scoring.num_bad,
            empty_rows=counts.empty_rows,
            failed_steps=counts.failed_steps + scoring.num_failed,
            sampler_rows=self._runner.rows_by_path,
            drafts=None if self._drafts is None else DraftStats.of(self._drafts.total),
            timings=self._timings.stats(),
            grammars=None if self._grammars is None else self._grammars.stats(),
            snapshots=None if self._snapshots is None else self._snapshots.pool.stats(),
            adapters=None if self.adapters is None else self.adapters.stats(),
            num_deferred=self._prerequisites.num_waiting,
        )

    def check(self) -> None:
        """Assert that blocks and rows agree; for tests and idle moments."""
        held = [self._table.blocks[row] for row in self._table.running]
        self._pool.check(held + self._scoring.holdings.held_blocks)
        if self._snapshots is not None:
            self._snapshots.check(self._scoring.holdings.reserved_snapshots)
        self._unfinished.check()
        if self.adapters is not None:
            num_scoring = self._scoring.num_active + self._scoring.num_waiting
            self.adapters.check(is_idle=not self._unfinished.count + num_scoring)
        assert self._unfinished.count or not self._table.running
