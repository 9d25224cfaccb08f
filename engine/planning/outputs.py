"""From settled steps to `StepOutput`s: a ring of the latest tokens per row, emitted by array.

Rows that stream are emitted every step, others every `emit_interval` tokens and at their end, so
the cost per token on either side of the wire is a fraction of an array operation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.planning.settle import Settled
from engine.request import (
    Finish,
    Int32Array,
    Int64Array,
    ItemScores,
    LogprobArrays,
    PromptLogprobs,
    StepOutput,
    UInt8Array,
)
from engine.rows import Choice
from engine.stats import EngineStats

DEPTH = 32
"""The largest emit_interval that has an effect."""

_NONE: Int32Array = np.zeros(0, dtype=np.int32)


@dataclass
class _Part:
    """Entries of one emission, before they are told apart by frontend."""

    choices: list[Choice]
    num_new: Int64Array
    finish: UInt8Array
    token_ids: Int32Array
    logprobs: LogprobArrays | None
    error: str | None = None


@dataclass
class _Mail:
    """What one frontend is told this step."""

    parts: list[_Part] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    item_scores: list[ItemScores] = field(default_factory=list)


class OutputRing:
    """Holds each row's tokens and logprobs until they are due, then hands them over by frontend."""

    def __init__(self, max_rows: int, max_new: int = 1) -> None:
        """`max_new`: tokens a row may draw in one step."""
        self._shape = (max_rows, DEPTH - 1 + max_new)
        self._token_ids: Int32Array = np.zeros(self._shape, dtype=np.int32)
        self._held: Int64Array = np.zeros(max_rows, dtype=np.int64)
        self._interval: Int64Array = np.ones(max_rows, dtype=np.int64)
        self._choices: list[Choice | None] = [None] * max_rows
        self._wants_logprobs: npt.NDArray[np.bool_] = np.zeros(max_rows, dtype=np.bool_)
        self._logprobs = self._logprob_ring(0, 0)
        self._mail: dict[bytes, _Mail] = {}

    @property
    def has_mail(self) -> bool:
        """Whether `collect` has something to hand over."""
        return bool(self._mail)

    def open(self, row: int, choice: Choice) -> None:
        """Start holding for a choice that got a row."""
        params = choice.request.params
        self._choices[row] = choice
        self._held[row] = 0
        self._interval[row] = min(choice.request.emit_interval, DEPTH)
        num_explicit = len(params.logprob_token_ids or ())
        self._wants_logprobs[row] = params.logprobs is not None or num_explicit > 0
        have = self._logprobs
        num_top, width = max(have.top_ids.shape[2], params.logprobs or 0), have.explicit.shape[2]
        if num_top > have.top_ids.shape[2] or num_explicit > width:
            self._logprobs = self._logprob_ring(num_top, max(width, num_explicit), have)

    def push(self, settled: Settled, logprobs: LogprobArrays | None) -> None:
        """Hold the step's tokens, and their logprobs [logit rows of the plan]."""
        for column in range(int(settled.num_new.max(initial=0))):
            kept = settled.num_new > column
            rows = settled.rows[kept]
            slots = self._held[rows]
            self._token_ids[rows, slots] = settled.token_ids[kept, column]
            self._held[rows] = slots + 1
            if logprobs is not None:
                self._push_logprobs(rows, slots, logprobs, settled.logit_idx[kept] + column)

    def _push_logprobs(
        self, rows: Int32Array, slots: Int64Array, logprobs: LogprobArrays, idx: Int64Array
    ) -> None:
        wanted = self._wants_logprobs[rows]
        rows, slots, idx = rows[wanted], slots[wanted], idx[wanted]
        ring = self._logprobs
        ring.chosen[rows, slots] = logprobs.chosen[idx]
        ring.ranks[rows, slots] = logprobs.ranks[idx]
        num_top = min(ring.top_ids.shape[2], logprobs.top_ids.shape[1])
        ring.top_ids[rows, slots, :num_top] = logprobs.top_ids[idx, :num_top]
        ring.top_logprobs[rows, slots, :num_top] = logprobs.top_logprobs[idx, :num_top]
        num_explicit = min(ring.explicit.shape[2], logprobs.explicit.shape[1])
        ring.explicit[rows, slots, :num_explicit] = logprobs.explicit[idx, :num_explicit]

    def emit_due(self, settled: Settled) -> None:
        """Emit the rows of a settled step that ended or hold as much as they may."""
        due = (settled.finish != Finish.RUNNING) | (
            self._held[settled.rows] >= self._interval[settled.rows]
        )
        if due.any():
            self.emit(settled.rows[due], settled.finish[due])

    def emit(self, rows: Int32Array, finish: UInt8Array, error: str | None = None) -> None:
        """Emit everything these rows hold, and how they stand."""
        held = self._held[rows]
        token_rows = np.repeat(rows, held)
        slots = np.arange(len(token_rows)) - np.repeat(np.cumsum(held) - held, held)
        part = _Part(
            choices=[choice for row in rows.tolist() if (choice := self._choices[row])],
            num_new=held,
            finish=finish,
            token_ids=self._token_ids[token_rows, slots],
            logprobs=self._take_logprobs(rows, token_rows, slots),
            error=error,
        )
        self._held[rows] = 0
        for frontend, mine in _by_frontend(part).items():
            self._mail.setdefault(frontend, _Mail()).parts.append(mine)

    def flush(self, row: int) -> None:
        """Emit what a row holds, if anything, because its choice is losing the row."""
        if self._held[row]:
            running = np.array([Finish.RUNNING], dtype=np.uint8)
            self.emit(np.array([row], dtype=np.int32), running)

    def end_waiting(self, choice: Choice, finish: Finish, error: str | None = None) -> None:
        """Tell of a choice that ended without a row."""
        nothing = np.zeros(1, dtype=np.int64)
        code = np.array([finish], dtype=np.uint8)
        part = _Part([choice], nothing, code, _NONE, None, error)
        self._mail.setdefault(choice.frontend, _Mail()).parts.append(part)

    def add_prompt_logprobs(self, choice: Choice, scores: PromptLogprobs) -> None:
        """Send a request's complete prompt logprobs with its next entry."""
        self._mail.setdefault(choice.frontend, _Mail()).prompt_logprobs.append(scores)

    def add_item_scores(self, frontend: bytes, scores: ItemScores) -> None:
        """Send the end of a scoring request."""
        self._mail.setdefault(frontend, _Mail()).item_scores.append(scores)

    def collect(self, stats: EngineStats) -> list[tuple[bytes, StepOutput]]:
        """One output for each frontend that has something to hear."""
        mail, self._mail = self._mail, {}
        return [(frontend, _step_output(letter, stats)) for frontend, letter in mail.items()]

    def _take_logprobs(
        self, rows: Int32Array, token_rows: Int32Array, slots: Int64Array
    ) -> LogprobArrays | None:
        if not self._wants_logprobs[rows].any():
            return None
        ring = self._logprobs
        params = [c.request.params for row in rows.tolist() if (c := self._choices[row])]
        num_top = max(p.logprobs or 0 for p in params)
        num_explicit = max(len(p.logprob_token_ids or ()) for p in params)
        return LogprobArrays(
            chosen=ring.chosen[token_rows, slots],
            ranks=ring.ranks[token_rows, slots],
            top_ids=ring.top_ids[token_rows, slots, :num_top],
            top_logprobs=ring.top_logprobs[token_rows, slots, :num_top],
            explicit=ring.explicit[token_rows, slots, :num_explicit],
        )

    def _logprob_ring(
        self, num_top: int, num_explicit: int, old: LogprobArrays | None = None
    ) -> LogprobArrays:
        shape = self._shape
        ring = LogprobArrays(
            chosen=np.zeros(shape, dtype=np.float32),
            ranks=np.zeros(shape, dtype=np.int32),
            top_ids=np.zeros((*shape, num_top), dtype=np.int32),
            top_logprobs=np.zeros((*shape, num_top), dtype=np.float32),
            explicit=np.zeros((*shape, num_explicit), dtype=np.float32),
        )
        if old is not None:
            ring.chosen[:], ring.ranks[:] = old.chosen, old.ranks
            ring.top_ids[:, :, : old.top_ids.shape[2]] = old.top_ids
            ring.top_logprobs[:, :, : old.top_ids.shape[2]] = old.top_logprobs
            ring.explicit[:, :, : old.explicit.shape[2]] = old.explicit
        return ring


def empty_output(stats: EngineStats) -> StepOutput:
    """An output without entries."""
    return _step_output(_Mail(), stats)


def _by_frontend(part: _Part) -> dict[bytes, _Part]:
    frontends = [choice.frontend for choice in part.choices]
    if len(set(frontends)) == 1:
        return {frontends[0]: part}
    parts = {}
    for frontend in dict.fromkeys(frontends):
        mine = np.array([other == frontend for other in frontends])
        tokens = np.repeat(mine, part.num_new)
        parts[frontend] = _Part(
            choices=[c for c in part.choices if c.frontend == frontend],
            num_new=part.num_new[mine],
            finish=part.finish[mine],
            token_ids=part.token_ids[tokens],
            logprobs=_select(part.logprobs, tokens),
            error=part.error,
        )
    return parts


def _select(arrays: LogprobArrays | None, tokens: npt.NDArray[np.bool_]) -> LogprobArrays | None:
    if arrays is None:
        return None
    return LogprobArrays(
        chosen=arrays.chosen[tokens],
        ranks=arrays.ranks[tokens],
        top_ids=arrays.top_ids[tokens],
        top_logprobs=arrays.top_logprobs[tokens],
        explicit=arrays.explicit[tokens],
    )


def _step_output(letter: _Mail, stats: EngineStats) -> StepOutput:
    parts = letter.parts
    choices = [choice for part in parts for choice in part.choices]
    return StepOutput(
        handles=np.array([c.request.handle for c in choices], dtype=np.int64),
        choices=np.array([c.index for c in choices], dtype=np.int32),
        num_new=np.concatenate([_NONE, *[p.num_new for p in parts]]).astype(np.int32),
        finish=np.concatenate([_NONE, *[p.finish for p in parts]]).astype(np.uint8),
        num_cached=np.array([c.num_cached or 0 for c in choices], dtype=np.int32),
        token_ids=np.concatenate([_NONE, *[p.token_ids for p in parts]]).astype(np.int32),
        logprobs=concat_logprobs([(part.logprobs, len(part.token_ids)) for part in parts]),
        prompt_logprobs=letter.prompt_logprobs,
        item_scores=letter.item_scores,
        errors={c.request.handle: p.error for p in parts if p.error for c in p.choices},
        drafts=_draft_counts(choices),
        stats=stats,
    )


def _draft_counts(choices: list[Choice]) -> Int64Array | None:
    """Counts of each choice, zeros for one that never ran; None where nobody drafts."""
    some = next((c.drafts for c in choices if c.drafts is not None), None)
    if some is None:
        return None
    return np.array([np.zeros_like(some) if c.drafts is None else c.drafts for c in choices])


def concat_logprobs(parts: list[tuple[LogprobArrays | None, int]]) -> LogprobArrays | None:
    """Join arrays of given token counts, None standing for undefined values, widths padded."""
    present = [arrays for arrays, _ in parts if arrays is not None]
    if not present:
        return None
    num_top = max(arrays.top_ids.shape[1] for arrays in present)
    num_explicit = max(arrays.explicit.shape[1] for arrays in present)
    total = sum(count for _, count in parts)
    joined = LogprobArrays(
        chosen=np.zeros(total, dtype=np.float32),
        ranks=np.zeros(total, dtype=np.int32),
        top_ids=np.zeros((total, num_top), dtype=np.int32),
        top_logprobs=np.zeros((total, num_top), dtype=np.float32),
        explicit=np.zeros((total, num_explicit), dtype=np.float32),
    )
    start = 0
    for arrays, count in parts:
        if arrays is not None:
            end = start + count
            joined.chosen[start:end], joined.ranks[start:end] = arrays.chosen, arrays.ranks
            joined.top_ids[start:end, : arrays.top_ids.shape[1]] = arrays.top_ids
            joined.top_logprobs[start:end, : arrays.top_ids.shape[1]] = arrays.top_logprobs
            joined.explicit[start:end, : arrays.explicit.shape[1]] = arrays.explicit
        start += count
    return joined
