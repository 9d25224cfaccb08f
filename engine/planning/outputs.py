"""Makes `StepOutput`s of settled steps: each row's latest tokens are held until they are due.

Rows that stream are emitted every step, others every `emit_interval` tokens and at their end. All
rows of a step are handled by the same few array operations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from engine.arrays import Float64Array, Int32Array, Int64Array, LogprobArrays, UInt8Array
from engine.contracts.control import FIRST_VERSION
from engine.messages.step_output import ChoiceRoutes, Finish, ItemScores, PromptLogprobs, StepOutput
from engine.planning.settle import Settled
from engine.rows import Choice
from engine.stats import EngineStats

DEPTH = 32
"""Tokens a row holds at most before they are emitted; the largest emit_interval in effect."""

_NONE: Int32Array = np.zeros(0, dtype=np.int32)


@dataclass
class _Emission:
    """Entries of `StepOutput` with their tokens, E choices with T tokens in all."""

    choices: list[Choice]
    num_new: Int64Array
    finish: UInt8Array
    token_ids: Int32Array
    logprobs: LogprobArrays | None
    origins: UInt8Array | None = None
    error: str | None = None


@dataclass
class _Outbox:
    """What one frontend gets with the next output."""

    emissions: list[_Emission] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    routes: list[ChoiceRoutes] = field(default_factory=list)
    item_scores: list[ItemScores] = field(default_factory=list)


class OutputRing:
    """Holds each row's tokens and logprobs until they are due, then gives them out by frontend.

    Attributes:
        weight_version, weight_tag: of the weights by which what is held was drawn.
    """

    def __init__(self, max_rows: int, max_new: int = 1, *, report_times: bool = False) -> None:
        """Make an empty ring.

        Args:
            max_new: tokens a row may draw in one step.
            report_times: outputs report the times of their choices.
        """
        self._shape = (max_rows, DEPTH - 1 + max_new)
        self._token_ids: Int32Array = np.zeros(self._shape, dtype=np.int32)
        self._held: Int64Array = np.zeros(max_rows, dtype=np.int64)
        self._interval: Int64Array = np.ones(max_rows, dtype=np.int64)
        self._choices: list[Choice | None] = [None] * max_rows
        self._wants_logprobs: npt.NDArray[np.bool_] = np.zeros(max_rows, dtype=np.bool_)
        self._logprobs = LogprobArrays.zeros(self._shape, 0, 0)
        self._has_drafter = max_new > 1
        self._wants_origins: npt.NDArray[np.bool_] = np.zeros(max_rows, dtype=np.bool_)
        self._origins: UInt8Array = np.zeros(self._shape, dtype=np.uint8)
        self._outboxes: dict[bytes, _Outbox] = {}
        self._report_times = report_times
        self.weight_version, self.weight_tag = FIRST_VERSION, ""

    @property
    def has_output(self) -> bool:
        """Whether `collect` has anything to give out."""
        return bool(self._outboxes)

    def open(self, row: int, choice: Choice) -> None:
        """Start holding for a choice that got a row."""
        params = choice.request.params
        self._choices[row] = choice
        self._interval[row] = min(choice.request.emit_interval, DEPTH)
        num_explicit = len(params.logprob_token_ids or ())
        asked = params.logprobs is not None or num_explicit > 0
        self._wants_logprobs[row] = asked or params.kept_logprob
        self._wants_origins[row] = self._has_drafter and choice.request.report_origins
        self._widen(params.logprobs or 0, num_explicit)

    def _widen(self, num_top: int, num_explicit: int) -> None:
        """Make room for as many top tokens and explicit ids in every row."""
        old = self._logprobs
        if num_top > old.num_top or num_explicit > old.num_explicit:
            widths = max(num_top, old.num_top), max(num_explicit, old.num_explicit)
            self._logprobs = LogprobArrays.zeros(self._shape, *widths)
            self._logprobs.put(slice(None), old)

    def add(self, settled: Settled, logprobs: LogprobArrays | None) -> None:
        """Take in a settled step: its tokens, and their logprobs [logit rows of the plan].

        Rows that ended or have as much as they may hold are emitted. Where these are all, and none
        held anything before, the step's arrays are emitted as they are.
        """
        rows = settled.rows
        held = self._held[rows]
        ended = settled.finish.astype(np.bool_)
        due = ended | (held + settled.num_new >= self._interval[rows])
        num_due = np.count_nonzero(due)
        if num_due and num_due == len(rows) and not np.count_nonzero(held):
            self._pass_on(settled, logprobs)
            return
        self._hold(settled, logprobs)
        if num_due:
            self.emit(rows[due], settled.finish[due])

    def _pass_on(self, settled: Settled, logprobs: LogprobArrays | None) -> None:
        """Emit a step, which nothing was held before."""
        rows, order = settled.rows, np.arange(settled.token_ids.shape[1])
        kept = order < settled.num_new[:, None]
        wants_origins = np.count_nonzero(self._wants_origins[rows])
        mine = None
        if logprobs is not None and np.count_nonzero(self._wants_logprobs[rows]):
            places = (settled.logit_idx[:, None] + order)[kept]
            mine = self._as_wide_as_asked(logprobs, rows).at(places)
        emission = _Emission(
            choices=self._choices_of(rows),
            num_new=settled.num_new,
            finish=settled.finish,
            token_ids=settled.token_ids[kept],
            logprobs=mine,
            origins=settled.origins()[kept] if wants_origins else None,
        )
        self._put(emission)

    def _hold(self, settled: Settled, logprobs: LogprobArrays | None) -> None:
        """Hold a step's tokens and their logprobs after those that rows hold already."""
        wants_origins = np.count_nonzero(self._wants_origins[settled.rows])
        origins = settled.origins() if wants_origins else None
        for column in range(int(settled.num_new.max(initial=0))):
            kept = settled.num_new > column
            rows = settled.rows[kept]
            slots = self._held[rows]
            self._token_ids[rows, slots] = settled.token_ids[kept, column]
            self._held[rows] = slots + 1
            if origins is not None:
                self._origins[rows, slots] = origins[kept, column]
            if logprobs is not None:
                wanted = self._wants_logprobs[rows]
                drawn = logprobs.at(settled.logit_idx[kept][wanted] + column)
                self._logprobs.put((rows[wanted], slots[wanted]), drawn)

    def emit(self, rows: Int64Array, finish: UInt8Array, error: str | None = None) -> None:
        """Emit everything these rows hold, with their `Finish` codes."""
        held = self._held[rows]
        token_rows = np.repeat(rows, held)
        slots = np.arange(len(token_rows)) - np.repeat(np.cumsum(held) - held, held)
        logprobs = None
        if np.count_nonzero(self._wants_logprobs[rows]):
            logprobs = self._as_wide_as_asked(self._logprobs, rows).at((token_rows, slots))
        wants_origins = np.count_nonzero(self._wants_origins[rows])
        emission = _Emission(
            choices=self._choices_of(rows),
            num_new=held,
            finish=finish,
            token_ids=self._token_ids[token_rows, slots],
            logprobs=logprobs,
            origins=self._origins[token_rows, slots] if wants_origins else None,
            error=error,
        )
        self._held[rows] = 0
        self._put(emission)

    def _choices_of(self, rows: Int64Array) -> list[Choice]:
        return [choice for row in rows.tolist() if (choice := self._choices[row])]

    def _as_wide_as_asked(self, logprobs: LogprobArrays, rows: Int64Array) -> LogprobArrays:
        """Views of as many top tokens and explicit ids as any of these rows asked for."""
        params = [choice.request.params for choice in self._choices_of(rows)]
        num_top = max(p.logprobs or 0 for p in params)
        num_explicit = max(len(p.logprob_token_ids or ()) for p in params)
        return logprobs.narrow(num_top, num_explicit)

    def _put(self, emission: _Emission) -> None:
        for frontend, mine in _by_frontend(emission).items():
            self._outbox(frontend).emissions.append(mine)

    def flush(self, rows: list[int]) -> None:
        """Emit what rows hold, if anything, because their choices are losing or resting them."""
        holding = np.array(rows, dtype=np.int64)
        holding = holding[self._held[holding] > 0]
        if len(holding):
            self.emit(holding, np.full(len(holding), Finish.RUNNING, dtype=np.uint8))

    def end_waiting(self, choices: list[Choice], finish: Finish, error: str | None = None) -> None:
        """Emit the ends of choices that hold no row."""
        nothing = np.zeros(len(choices), dtype=np.int64)
        codes = np.full(len(choices), finish, dtype=np.uint8)
        self._put(_Emission(choices, nothing, codes, _NONE, None, error=error))

    def add_prompt_logprobs(self, frontend: bytes, logprobs: PromptLogprobs) -> None:
        """Send a request's complete prompt logprobs."""
        self._outbox(frontend).prompt_logprobs.append(logprobs)

    def add_routes(self, frontend: bytes, routes: ChoiceRoutes) -> None:
        """Send the routes of a choice that ends with this output."""
        self._outbox(frontend).routes.append(routes)

    def add_item_scores(self, frontend: bytes, scores: ItemScores) -> None:
        """Send the end of a scoring request."""
        self._outbox(frontend).item_scores.append(scores)

    def collect(self) -> list[tuple[bytes, StepOutput]]:
        """Give out one output for each frontend that anything was emitted for, without `stats`."""
        outboxes, self._outboxes = self._outboxes, {}
        reports, version, tag = self._report_times, self.weight_version, self.weight_tag
        return [
            (frontend, _step_output(box, reports, version, tag))
            for frontend, box in outboxes.items()
        ]

    def _outbox(self, frontend: bytes) -> _Outbox:
        return self._outboxes.setdefault(frontend, _Outbox())


def empty_output(stats: EngineStats) -> StepOutput:
    """An output of statistics alone."""
    return msgspec.structs.replace(_step_output(_Outbox(), False), stats=stats)


def _by_frontend(emission: _Emission) -> dict[bytes, _Emission]:
    frontends = {choice.frontend for choice in emission.choices}
    if len(frontends) == 1:
        return dict.fromkeys(frontends, emission)
    members: dict[bytes, list[int]] = {}
    for i, choice in enumerate(emission.choices):
        members.setdefault(choice.frontend, []).append(i)
    emissions = {}
    for frontend, indices in members.items():
        mine = np.zeros(len(emission.choices), dtype=np.bool_)
        mine[indices] = True
        tokens = np.repeat(mine, emission.num_new)
        emissions[frontend] = _Emission(
            choices=[emission.choices[i] for i in indices],
            num_new=emission.num_new[mine],
            finish=emission.finish[mine],
            token_ids=emission.token_ids[tokens],
            logprobs=None if emission.logprobs is None else emission.logprobs.at(tokens),
            origins=None if emission.origins is None else emission.origins[tokens],
            error=emission.error,
        )
    return emissions


def _step_output(
    outbox: _Outbox,
    report_times: bool,
    weight_version: str = FIRST_VERSION,
    weight_tag: str = "",
) -> StepOutput:
    emissions = outbox.emissions
    choices = [choice for emission in emissions for choice in emission.choices]
    return StepOutput(
        handles=np.array([c.request.handle for c in choices], dtype=np.int64),
        choices=np.array([c.index for c in choices], dtype=np.int32),
        num_new=_joined([e.num_new for e in emissions], np.int32),
        finish=_joined([e.finish for e in emissions], np.uint8),
        num_cached=np.array([c.num_cached or 0 for c in choices], dtype=np.int32),
        token_ids=_joined([e.token_ids for e in emissions], np.int32),
        logprobs=concat_logprobs([(e.logprobs, len(e.token_ids)) for e in emissions]),
        origins=_concat_origins(emissions),
        prompt_logprobs=outbox.prompt_logprobs,
        routes=outbox.routes,
        item_scores=outbox.item_scores,
        errors={c.request.handle: e.error for e in emissions if e.error for c in e.choices},
        drafts=_draft_counts(choices),
        times=_times(choices) if report_times else None,
        weight_version=weight_version,
        weight_tag=weight_tag,
    )


def _joined(arrays: list[npt.NDArray[Any]], dtype: type[np.integer[Any]]) -> npt.NDArray[Any]:
    """The arrays side by side; as a rule there is one."""
    whole = arrays[0] if len(arrays) == 1 else np.concatenate([_NONE, *arrays])
    return whole.astype(dtype, copy=False)


def _concat_origins(emissions: list[_Emission]) -> UInt8Array | None:
    """Join the origins of emissions, undefined in those without; None where none has any."""
    if all(e.origins is None for e in emissions):
        return None
    nothing = [np.zeros(len(e.token_ids), dtype=np.uint8) for e in emissions]
    pairs = zip(emissions, nothing, strict=True)
    return np.concatenate([none if e.origins is None else e.origins for e, none in pairs])


def _times(choices: list[Choice]) -> Float64Array:
    """When choices were submitted, got a row and drew, float64 [E, 3]."""
    stamps = [(c.queued_at, c.started_at, c.drew_at) for c in choices]
    return np.array(stamps, dtype=np.float64).reshape(len(choices), 3)


def _draft_counts(choices: list[Choice]) -> Int64Array | None:
    """Draft counts of each choice, zeros for one that never ran; None without a drafter."""
    some = next((c.drafts for c in choices if c.drafts is not None), None)
    if some is None:
        return None
    return np.array([np.zeros_like(some) if c.drafts is None else c.drafts for c in choices])


def concat_logprobs(parts: list[tuple[LogprobArrays | None, int]]) -> LogprobArrays | None:
    """Join arrays of given token counts, as wide as the widest.

    None means undefined values, and what a narrower part lacks is undefined too.
    """
    present = [arrays for arrays, _ in parts if arrays is not None]
    if not present:
        return None
    num_top = max(arrays.num_top for arrays in present)
    num_explicit = max(arrays.num_explicit for arrays in present)
    joined = LogprobArrays.zeros((sum(count for _, count in parts),), num_top, num_explicit)
    start = 0
    for arrays, count in parts:
        if arrays is not None:
            joined.put(slice(start, start + count), arrays)
        start += count
    return joined
