"""The engine's loop: requests in, steps planned and launched, results read back, outputs out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import numpy as np

from engine.config import EngineConfig
from engine.contracts.adapters import AdapterReader, no_adapter
from engine.contracts.info import EngineInfo
from engine.contracts.runner import Runner
from engine.control.held_engine import HeldEngine
from engine.messages.request import Request, ScoringRequest
from engine.messages.step_output import Finish, StepOutput
from engine.plan import StepPlan
from engine.planning.drafting import NO_DRAFTS, DraftRules
from engine.planning.prompt_parts import join_prompt_parts
from engine.planning.settle import Settled
from engine.rows import Choice
from engine.stats import EngineStats
from engine.step_parts import StepParts
from engine.step_pipeline import EnteredStep
from engine.structured.grammars import Failures, Grammars

logger = logging.getLogger(__name__)


class Engine:
    """Continuous batching over a runner, one step in flight while the next is planned.

    Single-threaded: one loop calls all methods.

    Attributes:
        held: what commands ask of it, between two steps.
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
        parts = self._parts = StepParts(
            config,
            info,
            runner,
            drafting.begun(),
            grammars,
            adapters,
            save=self._save,
            end=self._end,
            fail=self._fail,
        )
        self.held, self.adapters = HeldEngine(parts, self._end), parts.adapters
        self._ring, self._table, self._scheduler = parts.ring, parts.table, parts.scheduler
        self._arrivals, self._prerequisites = parts.arrivals, parts.prerequisites
        self._unfinished, self._scoring = parts.unfinished, parts.scoring
        self._pipeline, self._timings = parts.pipeline, parts.timings

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do; nothing where choices only wait for their grammars."""
        if self.held.is_held:
            return not self.held.is_quiet
        if self._prerequisites.has_read or not self._pipeline.is_empty:
            return True
        generates = self._unfinished.count > self._prerequisites.num_waiting
        return generates or self._scoring.has_work or self._ring.has_output

    @property
    def only_waits(self) -> bool:
        """Whether `step` would do nothing but wait for a lone step of scoring.

        Requests that come meanwhile can be launched right after it.
        """
        return self._pipeline.is_empty and not self._unfinished.count and self._scoring.only_waits

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
            words = no_adapter(request.adapter, request.adapter_digest)
            self._end(choices, Finish.ADAPTER, words)
        elif request.is_constrained and self._parts.grammars is None:
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
            self._scoring.launch(held=self.held.is_held)
            self._keep(self._enter())
        self._pipeline.advance()
        self._scoring.read_back()
        if self.held.is_held and self._pipeline.is_empty:
            self._ring.flush(self._table.running)
        return self._ring.collect() if self._ring.has_output else []

    def _plan(self) -> StepPlan | None:
        return None if self.held.is_held else self._scheduler.plan()

    def _launch(self, plan: StepPlan | None) -> None:
        if plan is None:
            return
        self._timings.started(admission.choice for admission in plan.admissions)
        for admission in plan.admissions:
            self._ring.open(admission.row, admission.choice)
            if self._parts.drafts is not None:
                self._parts.drafts.open(admission.row, admission.choice)
        if self.adapters is not None:
            plan.adapter_loads = self.adapters.take_loads()
        self._pipeline.launch(plan)

    def _draw(self, plan: StepPlan) -> None:
        """Issue the draw of a step that awaits masks, and launch the step after it."""
        assert self._parts.grammars is not None, "only choices with a grammar await masks"
        entered = self._enter()
        filling = self._parts.grammars.fill(plan)
        self._keep(entered)
        following = self._plan()
        masks, failures = self._parts.grammars.filled(filling)
        self._pipeline.draw(masks)
        self._scoring.launch(held=self.held.is_held)
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
        self._parts.counts.add(plan, settled)
        self._timings.stepped(plan.num_tokens)
        self._timings.drew(self._table.choices_of(settled.first_drawn))
        if self._parts.drafts is not None:
            self._parts.drafts.add(settled)
            self._parts.drafting.learn(settled)
        for frontend, prompt_logprobs in join_prompt_parts(self._table, plan, result):
            self._ring.add_prompt_logprobs(frontend, prompt_logprobs)
        self._ring.add(settled, result.logprobs)
        self._finish_rows(settled)
        self._end_failed(failures)
        self._unfinished.release_children(self._table)

    def _finish_rows(self, settled: Settled) -> None:
        if not np.count_nonzero(settled.finish):  # all are running
            self._parts.prefixes.register(settled.rows)
            return
        failed = settled.finish == Finish.NAN
        self._parts.prefixes.register(settled.rows[~failed])
        ended: list[int] = settled.rows[settled.finish != Finish.RUNNING].tolist()
        self._parts.routes.read(ended)
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
            self._parts.routes.read(rows)
        for row in rows:
            self._scheduler.release(row)

    def _end_failed(self, failures: Failures) -> None:
        """End choices whose matchers failed."""
        for choice, finish, message in failures:
            logger.warning("a choice ended: %s", message)
            self._end([choice], finish, message)

    def _fail(self, plan: StepPlan, message: str) -> None:
        """End the choices of a step that raised; the others go on."""
        self._parts.counts.failed_steps += 1
        logger.error("a step of %d rows failed: %s", len(plan.rows), message)
        self._end([c for c in plan.choices if not c.ended], Finish.ERROR, message)

    def _forget(self, choice: Choice) -> None:
        """Strike an ended choice from the books; choices that waited for its prompt go on."""
        self._unfinished.end(choice)
        self._arrivals.forget(choice)
        self._prerequisites.forget(choice)
        self._scheduler.forget(choice)
        row, known = choice.row, len(choice.token_ids)
        known = known if row is None else int(self._table.num_known[row])
        self._timings.ended(choice, known - choice.prompt_len)
        choice.keep_drafts()

    def stats(self) -> EngineStats:
        """Gauges of now and counters since the start."""
        return self._parts.stats()

    def check(self) -> None:
        """Assert that blocks and rows agree; for tests and idle moments."""
        self._parts.check()
