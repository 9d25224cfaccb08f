"""`Grammars`: the grammars and budgets of all choices, as the engine's loop sees them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from engine.arrays import Int32Array, Int64Array
from engine.config import StructuredConfig
from engine.contracts.runner import StepResult
from engine.errors import kind_and_line
from engine.messages.step_output import Finish
from engine.plan import StepMasks, StepPlan
from engine.planning.settle import Settled
from engine.rows import Choice, RowTable
from engine.stats import GrammarStats
from engine.structured.awaited import AwaitedGrammars
from engine.structured.compiler import CompiledGrammar, GrammarError
from engine.structured.masks import MaskFiller, default_threads
from engine.structured.matcher import ChoiceMatcher, error_of, finish_of
from engine.structured.plain_rows import PlainRows
from engine.structured.step_masks import StepFill

Failures = list[tuple[Choice, Finish, str]]
"""Choices whose matchers failed, how they end, and why."""
SHARES_A_THREAD = 4
"""Compiles of one grammar at most, for each thread that fills masks: a thread that has taken over
some of another's rows must seldom find their lock taken."""
FREED_A_STEP = 4
"""Matchers of choices that ended, which take 0.1 ms each to free: those of a batch that ends
at once would hold up its last outputs."""
_LOCK = itemgetter(0)
_Run = tuple[LLMatcher, list[int]]
"""A matcher and the tokens it is to consume."""
_NO_DRAFTS: list[int] = []


class StepFilling(NamedTuple):
    """The masks of a step while threads fill them.

    Attributes:
        slots: int32 [N], as in `StepMasks`.
        step: fills them.
        began: when, in seconds of `time.perf_counter`.
    """

    plan: StepPlan
    slots: Int32Array
    step: StepFill
    began: float


class Grammars:
    """Compiles the grammars of requests and holds each of their choices to its own.

    A choice may have a budget of thoughts beside its grammar, or in place of it.

    The engine's loop calls all methods; only compiles end on other threads.

    Args:
        tokenizer: of the model, all its end-of-sequence ids included.
        mask_buffer: the runner's, see `HostMasks`.
        max_rows, num_drafts: rows of a step, and drafts each may bring.
    """

    def __init__(
        self,
        config: StructuredConfig,
        tokenizer: LLTokenizer,
        mask_buffer: Int32Array,
        max_rows: int,
        num_drafts: int,
    ) -> None:
        threads = config.mask_threads or default_threads()
        self._awaited = AwaitedGrammars(config, tokenizer, max_rows, SHARES_A_THREAD * threads)
        self._filler = MaskFiller(mask_buffer, tokenizer.eos_tokens, threads)
        self._vocab_size = tokenizer.vocab_size
        self._matchers: dict[Choice, ChoiceMatcher] = {}
        self._ended: deque[ChoiceMatcher] = deque(maxlen=max_rows)
        self._plain = PlainRows(max_rows)
        self._drafts: Int32Array = np.full((max_rows, num_drafts), -1, dtype=np.int32)
        self._num_masks = self._num_errors = 0
        self._mask_seconds = 0.0

    # -- compiles ---------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """The number of choices whose grammars are being compiled."""
        return self._awaited.num_waiting

    @property
    def has_compiled(self) -> bool:
        """Whether `take_compiled` may have something to give."""
        return self._awaited.has_compiled

    def on_compiled(self, wake: Callable[[], None]) -> None:
        """Let `wake` be called, on another thread, whenever a compile ends."""
        self._awaited.on_compiled(wake)

    def hold(self, choices: list[Choice]) -> bool:
        """Take a request's choices; returns whether they wait until their grammar is compiled."""
        request = choices[0].request
        if request.grammar is None:
            for choice in choices:
                self._matchers[choice] = ChoiceMatcher(None, None, request.thinking_budget)
            return False
        self._awaited.hold(choices, request.grammar.source)
        return True

    def take_compiled(self) -> list[tuple[list[Choice], str | None]]:
        """Requests whose compile has ended: their choices that have not, and why it failed."""
        return [self._begin(*held) for held in self._awaited.take()]

    def _begin(
        self, choices: list[Choice], compiled: CompiledGrammar
    ) -> tuple[list[Choice], str | None]:
        if (error := compiled.matcher.exception()) is not None:
            self._num_errors += len(choices)
            words = str(error) if isinstance(error, GrammarError) else kind_and_line(error)
            return choices, f"the grammar cannot be compiled: {words}"
        matcher = compiled.matcher.result()
        for choice in choices:
            request = choice.request
            self._matchers[choice] = ChoiceMatcher(
                request.grammar, matcher, request.thinking_budget, compiled.number
            )
        return choices, None

    def forget(self, choice: Choice) -> None:
        """Drop a choice that ended."""
        self._awaited.forget(choice)
        self._strike(choice)

    # -- steps ------------------------------------------------------------------------------

    def enter(
        self, table: RowTable, plan: StepPlan, result: StepResult, settled: Settled
    ) -> Failures:
        """Enter a step that was read back: the tokens that are kept, and the next step's drafts.

        Choices that end with it have no masks any more.
        """
        self._keep_drafts(table, plan, result)
        places = np.flatnonzero(table.is_constrained[settled.rows])
        if not len(places):
            return []
        goes_on = settled.finish[places] == Finish.RUNNING
        for choice in table.choices_of(settled.rows[places[~goes_on]]):
            self._strike(choice)
        places = places[goes_on]
        rows = settled.rows[places]
        held = self._plain.held(rows, table.epoch[rows])
        try:
            others = self._entered_by_others(table, settled, places[~held])
            could = self._filler.consume(self._entered_by_plain(settled, places[held]) + others)
        except Exception as error:
            return self._failed(table.choices_of(rows), error)
        return [] if could else self._failed_of(table.choices_of(rows))

    def _entered_by_plain(self, settled: Settled, places: Int64Array) -> list[_Run]:
        places = places[self._plain.order(settled.rows[places])]
        token_ids, num_new = settled.token_ids[places], settled.num_new[places]
        entered: list[list[int]] = token_ids.tolist()
        if token_ids.shape[1] > 1:
            entered = [ids[:num] for ids, num in zip(entered, num_new.tolist(), strict=True)]
        matchers = self._plain.matchers_of(settled.rows[places])
        return list(zip(matchers, entered, strict=True))

    def _entered_by_others(
        self, table: RowTable, settled: Settled, places: Int64Array
    ) -> list[_Run]:
        choices = table.choices_of(settled.rows[places])
        token_ids, num_new = settled.token_ids[places].tolist(), settled.num_new[places].tolist()
        entered = []
        for choice, ids, num in zip(choices, token_ids, num_new, strict=True):
            state = self._matchers[choice]
            consumed = state.enter(ids[:num])
            if consumed and state.matcher is not None:
                entered.append((state.lock, (state.matcher, consumed)))
        entered.sort(key=_LOCK)
        return [run for _, run in entered]

    def _keep_drafts(self, table: RowTable, plan: StepPlan, result: StepResult) -> None:
        if result.drafts is not None:
            rows, epochs = plan.rows[plan.proposes], plan.epochs[plan.proposes]
            live = table.epoch[rows] == epochs
            self._drafts[rows[live]] = result.drafts[live]

    def fill(self, plan: StepPlan) -> StepFilling:
        """Begin to fill the masks of a launched step, whose earlier steps have all been entered.

        Logit rows of choices that ended meanwhile, whose grammar has not begun or failed, or that
        come after a draft which the grammar refuses have none, within their budgets of thoughts.

        Returns:
            What `filled` waits for; nothing may be entered in between.
        """
        masks, began = StepMasks.none(plan), time.perf_counter()
        drawing = np.flatnonzero(plan.constrained & plan.samples)
        starts = np.cumsum(plan.num_logits) - plan.num_logits
        step = StepFill(self._filler, masks.slots)
        others = self._find_plain(plan, drawing)
        plain = drawing[self._plain.held(plan.host_rows[drawing], plan.epochs[drawing])]
        plain = plain[self._plain.order(plan.host_rows[plain])]
        matchers = self._plain.matchers_of(plan.host_rows[plain])
        step.add_plain(plain, starts[plain], matchers, self._drafts_of(plan, plain))
        drafts = self._drafts_of(plan, np.array([place for place, _ in others], dtype=np.int64))
        for (place, state), own in zip(others, drafts, strict=True):
            step.add(place, int(starts[place]), state.masks_in(own))
        step.start()
        for _ in range(min(len(self._ended), FREED_A_STEP)):
            self._ended.popleft()  # while threads fill
        return StepFilling(plan, masks.slots, step, began)

    def _find_plain(self, plan: StepPlan, drawing: Int64Array) -> list[tuple[int, ChoiceMatcher]]:
        """Enter rows that have become plain; returns the others that have masks, by their place."""
        others = []
        held = self._plain.held(plan.host_rows[drawing], plan.epochs[drawing])
        for place in drawing[~held].tolist():
            state = self._matchers.get(plan.choices[place])
            if state is None:
                continue
            if state.is_plain:
                assert state.matcher is not None
                row, epoch = int(plan.rows[place]), int(plan.epochs[place])
                self._plain.put(row, epoch, state.matcher, state.lock)
            else:
                others.append((place, state))
        others.sort(key=lambda other: other[1].lock)
        return others

    def filled(self, filling: StepFilling) -> tuple[StepMasks, Failures]:
        """Wait for the masks of a step; returns them and the choices that failed."""
        plan, slots, step, began = filling
        try:
            could = step.fill_grammars()
            failures = [] if could else self._failed_of(plan.choices[i] for i in step.places)
        except Exception as error:
            failures = self._failed([plan.choices[i] for i in step.places], error)
        count = step.fill_tokens()
        if count:
            self._num_masks += int((slots >= 0).sum())
            self._mask_seconds += time.perf_counter() - began
        return StepMasks(count, slots), failures

    def _drafts_of(self, plan: StepPlan, places: Int64Array) -> list[list[int]]:
        """The drafts that rows of the plan bring, each up to the first that is none."""
        if not plan.num_drafts:
            return [_NO_DRAFTS] * len(places)
        drafts = self._drafts[plan.rows[places], : plan.num_drafts]
        is_none = (drafts < 0) | (drafts >= self._vocab_size)
        is_none[~plan.decodes[places] | np.isin(plan.rows[places], plan.undrafted)] = True
        given = np.where(is_none.any(axis=1), is_none.argmax(axis=1), drafts.shape[1])
        return [ids[:num] for ids, num in zip(drafts.tolist(), given.tolist(), strict=True)]

    def _failed(self, choices: list[Choice], error: Exception) -> Failures:
        """What to say of choices of which llguidance reported only an exception."""
        words = f"the grammar failed: {kind_and_line(error)}"
        return self._drop([(choice, Finish.GRAMMAR, words) for choice in choices])

    def _failed_of(self, choices: Iterable[Choice]) -> Failures:
        """The choices among these whose matcher can no longer follow its grammar."""
        failed: Failures = []
        for choice in choices:
            state = self._matchers.get(choice)  # none where it ended while its mask was filled
            if state is not None and state.matcher is not None and state.matcher.is_error():
                words = error_of(state.matcher)
                failed.append(
                    (choice, finish_of(words), f"the grammar cannot be followed: {words}")
                )
        return self._drop(failed)

    def _drop(self, failed: Failures) -> Failures:
        """Count failures, but for those that are the request's own doing, and end their masks."""
        self._num_errors += sum(finish == Finish.GRAMMAR for _, finish, _ in failed)
        for choice, _, _ in failed:
            self._strike(choice)
        return failed

    def _strike(self, choice: Choice) -> None:
        """Let a choice have no masks any more."""
        if (state := self._matchers.pop(choice, None)) is not None:
            self._ended.append(state)
        if choice.row is not None:
            self._plain.drop(choice.row)

    def stats(self) -> GrammarStats:
        """Counts since the start."""
        compiler = self._awaited.compiler
        return GrammarStats(
            num_compiles=compiler.num_compiles,
            compile_seconds=compiler.seconds,
            num_cache_hits=compiler.num_cache_hits,
            num_masks=self._num_masks,
            mask_seconds=self._mask_seconds,
            num_errors=self._num_errors,
        )
