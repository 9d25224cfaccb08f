"""What engine and runner say to each other: a step's plan, and what it computed. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.contracts.scoring import ScoringRunner
from engine.request import Int32Array, Int64Array, LogprobArrays
from engine.rows import BoolArray, Choice


@dataclass(frozen=True)
class Admission:
    """A choice that got a row in this step: its device row starts from these facts.

    Attributes:
        num_computed: tokens whose KV its first blocks hold.
        limit: first position its tokens may not reach.
    """

    row: int
    choice: Choice
    num_computed: int
    limit: int


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
    """One forward: R rows, those that decode first, then those with one query token.

    A decoding row computes its last token and `num_drafts` drafts, and draws behind each.

    Attributes:
        rows: int32 [R]. num_query: int32 [R], tokens each row computes.
        starts: int32 [R], upper bound of tokens computed before, exact for rows that prefill.
        samples: bool [R], rows whose last known token is computed, so that they draw the next.
        decodes: bool [R], those of them that did so before.
        runs_drafter: whether the drafter sees this step's tokens.
        proposes: bool [R], rows for which it makes the next step's drafts.
        epochs: int64 [R], of the rows when the step was planned.
        choices: whose rows these were.
        num_prompt_tokens: prompt tokens among those computed.
        num_drafts: k or 0, the same for every decoding row.
        admissions, grants: rows and blocks given since the last plan, in order.
        released: rows vacated since the last plan; apply before admissions.
        undrafted: decoding rows of this step that bring no drafts of their own.
        spans: prompt positions whose next tokens are to be scored.
    """

    rows: Int32Array
    num_query: Int32Array
    starts: Int32Array
    samples: BoolArray
    epochs: Int64Array
    choices: list[Choice]
    num_prompt_tokens: int
    num_drafts: int
    decodes: BoolArray
    runs_drafter: bool
    proposes: BoolArray
    admissions: list[Admission] = field(default_factory=list)
    grants: list[BlockGrant] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    undrafted: list[int] = field(default_factory=list)
    spans: list[PromptSpan] = field(default_factory=list)

    @property
    def num_logits(self) -> Int64Array:
        """int64 [R], logit rows of each row: one a token that may be drawn behind."""
        return self.samples + self.decodes * self.num_drafts

    @property
    def is_decode(self) -> bool:
        """Whether every row computes its last token and its drafts, and that is all."""
        if self.num_drafts:
            return bool(self.decodes.all())
        one_token_each = len(self.rows) == int(self.num_query.sum())
        return (
            one_token_each and bool(self.samples.all()) and not self.runs_drafter and not self.spans
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
        if choice.prompt_parts is None or scores is None:
            continue
        start = int(plan.starts[row_idx])
        first = max(scores.start - 1 - start, 0)
        last = min(int(plan.num_query[row_idx]), choice.prompt_len - 1 - start)
        if first < last:
            spans.append(PromptSpan(row_idx, first, last, choice))
    return spans


@dataclass(frozen=True)
class StepResult:
    """What a step computed, on the host: L rows drew, from N logit rows in all.

    Attributes:
        token_ids: int32 [L, 1 + num_drafts], in the plan's order of drawing rows.
        num_new: int32 [L], how many of them stand.
        bad: bool [L], rows whose logits were not usable behind those.
        num_offered, num_accepted: int32 [L], drafts verified and kept; None without drafts.
        logprobs: [N], where the batch asked for any.
        prompt_logprobs: of the plan's spans, in order.
    """

    token_ids: Int32Array
    num_new: Int32Array
    bad: BoolArray
    num_offered: Int32Array | None
    num_accepted: Int32Array | None
    logprobs: LogprobArrays | None
    prompt_logprobs: list[LogprobArrays]


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
