"""What engine and runner say to each other: a step's plan, and what it computed. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.request import Int32Array, Int64Array, LogprobArrays
from engine.rows import BoolArray, Choice
from engine.scoring_plan import ScoringRunner


@dataclass(frozen=True)
class Admission:
    """A choice that got a row in this step: its device row starts from these facts."""

    row: int
    choice: Choice
    num_computed: int


@dataclass(frozen=True)
class BlockGrant:
    """Blocks appended to a row's table, the first at index `start`."""

    row: int
    start: int
    blocks: list[int]


@dataclass(frozen=True)
class PromptSpan:
    """Query tokens first .. last - 1 of the plan's row `row_idx`, whose successors are scored."""

    row_idx: int
    first: int
    last: int
    choice: Choice


@dataclass
class StepPlan:
    """One forward: R rows, those with one query token first.

    Attributes:
        rows: int32 [R]. num_query: int32 [R], tokens each row computes.
        starts: int32 [R], upper bound of tokens computed before.
        samples: bool [R], rows whose last known token is computed, so that they draw the next.
        epochs: int64 [R], of the rows when the step was planned.
        choices: whose rows these were.
        num_prompt_tokens: prompt tokens among those computed.
        admissions, grants: rows and blocks given since the last plan, in order.
        released: rows vacated since the last plan; apply before admissions.
        spans: prompt positions whose next tokens are to be scored.
    """

    rows: Int32Array
    num_query: Int32Array
    starts: Int32Array
    samples: BoolArray
    epochs: Int64Array
    choices: list[Choice]
    num_prompt_tokens: int
    admissions: list[Admission] = field(default_factory=list)
    grants: list[BlockGrant] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    spans: list[PromptSpan] = field(default_factory=list)

    @property
    def is_decode(self) -> bool:
        """Whether every row computes one token and draws the next, and that is all."""
        return (
            len(self.rows) == int(self.num_query.sum())
            and bool(self.samples.all())
            and (not self.spans)
        )

    @property
    def max_seq_len(self) -> int:
        """Upper bound of tokens any row's attention sees."""
        return int((self.starts + self.num_query).max())


def prompt_spans(plan: StepPlan, prefilling: Int64Array) -> list[PromptSpan]:
    """Which query tokens predict prompt tokens that are to be scored.

    Args:
        prefilling: int64, indices of the plan's rows that compute prompt tokens.
    """
    spans = []
    for row_idx in prefilling.tolist():
        choice = plan.choices[row_idx]
        scores = choice.request.prompt_logprobs
        if choice.scores is None or scores is None:
            continue
        start = int(plan.starts[row_idx])
        first = max(scores.start - 1 - start, 0)
        last = min(int(plan.num_query[row_idx]), choice.prompt_len - 1 - start)
        if first < last:
            spans.append(PromptSpan(row_idx, first, last, choice))
    return spans


@dataclass(frozen=True)
class StepResult:
    """What a step computed, on the host: L rows drew a token.

    Attributes:
        token_ids: int32 [L], in the plan's order of drawing rows.
        bad: bool [L], rows whose logits were not usable.
        logprobs: [L], where the batch asked for any.
        scores: of the plan's spans, in order.
    """

    token_ids: Int32Array
    bad: BoolArray
    logprobs: LogprobArrays | None
    scores: list[LogprobArrays]


class RunnerLostError(RuntimeError):
    """The device failed in a way that no later step can survive."""


class StepHandle(Protocol):
    """A step that was launched.

    Attributes:
        plan: what it runs.
    """

    plan: StepPlan

    def wait(self, timeout_s: float | None = None) -> StepResult:
        """What it computed.

        Raises:
            RunnerLostError: no later step can run either.
            TimeoutError: it took longer.
            Exception: what the step raised.
        """
        ...


class Runner(ScoringRunner, Protocol):
    """Runs plans in the order they are launched, without waiting for their results.

    Attributes:
        rows_by_path: rows drawn so far, by the sampler's path.
    """

    @property
    def rows_by_path(self) -> dict[str, int]: ...

    def launch(self, plan: StepPlan) -> StepHandle:
        """Issue a step behind those already issued."""
        ...
