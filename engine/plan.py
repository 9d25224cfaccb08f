"""A step's plan, made by the engine, and its result, made by the runner. No torch."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from engine.arrays import Int32Array, Int64Array, LogprobArrays, UInt8Array
from engine.contracts.adapters import AdapterLoad
from engine.contracts.control import MemoryPart
from engine.contracts.scoring import ScoringRunner
from engine.contracts.weights import AnyWeightCommand, WeightReply
from engine.errors import kind_and_line
from engine.memory.snapshots import NO_SNAPSHOT
from engine.rows import BoolArray, Choice


@dataclass(frozen=True)
class Admission:
    """A choice that got a row in this step, and the state its row on the device starts from.

    Attributes:
        num_computed: tokens whose KV its first blocks hold.
        limit: prompt and generated tokens together at most; no token gets this position.
        snapshot: the state after these tokens, where layers keep one.
        reads_outputs: the row's drafts may follow recent outputs of other requests.
    """

    row: int
    choice: Choice
    num_computed: int
    limit: int
    snapshot: int = NO_SNAPSHOT
    reads_outputs: bool = False


@dataclass(frozen=True)
class BlockGrant:
    """Blocks appended to a row's table, the first at index `start`."""

    row: int
    start: int
    blocks: list[int]


@dataclass(frozen=True)
class SnapshotGrant:
    """Where a row's state is kept after so many tokens, at most `MAX_SNAPSHOTS` times.

    It replaces what the row was granted before.

    Attributes:
        ends: numbers of tokens, ascending. snapshots: one for each.
    """

    row: int
    ends: tuple[int, ...]
    snapshots: tuple[int, ...]


@dataclass(frozen=True)
class PromptSpan:
    """Query tokens first .. last - 1 of the plan's row `row_idx`.

    The logprob of the prompt token after each of them is wanted.
    """

    row_idx: int
    first: int
    last: int
    choice: Choice


@dataclass
class StepPlan:
    """One forward over R rows: decoding rows first, then other rows with one query token.

    A decoding row computes its last token and `num_drafts` drafts, and draws after each.

    Attributes:
        rows: int32 [R]. num_query: int32 [R], tokens each row computes.
        starts: int32 [R], upper bound of tokens computed before, exact for rows that prefill.
        samples: bool [R], rows whose last token is computed here, so that they draw the next.
        decodes: bool [R], the rows among these whose prefill ended in an earlier step.
        runs_drafter: whether the drafter sees this step's tokens.
        proposes: bool [R], rows for which the drafter makes the next step's drafts.
        constrained: bool [R], rows whose choice draws under masks of its own.
        epochs: int64 [R], epochs of the rows when the step was planned.
        choices: the choice that held each row then.
        num_prompt_tokens: prompt tokens among those computed.
        num_drafts: k or 0, the same for every decoding row.
        admissions, grants: rows and blocks given since the last plan, in order.
        snapshots: wanted from this step on, at most one a row.
        released: rows vacated since the last plan; apply before admissions.
        outputs: tokens of choices that ended since, for drafts of others to follow.
        undrafted: decoding rows of this step that bring no drafts of their own.
        spans: prompt positions whose next tokens' logprobs are wanted.
        adapters: int32 [R], the slots of the rows' adapters; None where no row has one.
        adapter_loads: copied into slots before the step.
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
    constrained: BoolArray
    admissions: list[Admission] = field(default_factory=list)
    grants: list[BlockGrant] = field(default_factory=list)
    snapshots: list[SnapshotGrant] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    outputs: list[Int32Array] = field(default_factory=list)
    undrafted: list[int] = field(default_factory=list)
    spans: list[PromptSpan] = field(default_factory=list)
    adapters: Int32Array | None = None
    adapter_loads: list[AdapterLoad] = field(default_factory=list)

    @classmethod
    def of_new_rows(
        cls,
        choices: list[Choice],
        num_tokens: int,
        limit: int,
        blocks: Int64Array,
        *,
        num_drafts: int = 0,
        runs_drafter: bool = False,
        adapters: Int32Array | None = None,
    ) -> StepPlan:
        """A step that admits choices to rows 0, 1, ..., computes their tokens and draws in each.

        Args:
            num_tokens: that each row computes, those of its drafts included.
            limit: as in `Admission`. blocks: [R, blocks a row].
            adapters: as in `StepPlan`.
            num_drafts: as in `StepPlan`; where there are any, all rows decode.
        """
        rows = np.arange(len(choices), dtype=np.int32)
        plan = cls(
            rows=rows,
            num_query=np.full_like(rows, num_tokens),
            starts=np.zeros_like(rows),
            samples=np.ones(len(rows), dtype=np.bool_),
            epochs=np.zeros(len(rows), dtype=np.int64),
            choices=choices,
            num_prompt_tokens=len(rows) * num_tokens,
            num_drafts=num_drafts,
            decodes=np.full(len(rows), num_drafts > 0),
            runs_drafter=runs_drafter,
            proposes=np.full(len(rows), runs_drafter),
            constrained=np.array([c.request.is_constrained for c in choices], dtype=np.bool_),
            admissions=[Admission(row, choice, 0, limit) for row, choice in enumerate(choices)],
            grants=[BlockGrant(row, 0, own) for row, own in enumerate(blocks.tolist())],
            adapters=adapters,
        )
        plan.spans = prompt_spans(plan, rows.astype(np.int64))
        return plan

    def again(self) -> StepPlan:
        """The step after this one, where all its rows decode without drafts and go on.

        All else is this plan's own, the properties worked out so far too: none follows from what
        differs, and `dataclasses.replace` would take ten times as long.
        """
        plan = object.__new__(StepPlan)
        plan.__dict__.update(self.__dict__)
        plan.starts = self.starts + self.num_query
        plan.admissions, plan.grants, plan.snapshots, plan.released = [], [], [], []
        plan.adapter_loads = []
        return plan

    @cached_property
    def host_rows(self) -> Int64Array:
        """int64 [R], the rows as indices of the host's arrays.

        With indices of any other type numpy takes several times as long.
        """
        return self.rows.astype(np.int64)

    @cached_property
    def num_tokens(self) -> int:
        """The tokens that all rows compute."""
        return int(self.num_query.sum())

    @cached_property
    def num_prefilled(self) -> int:
        """The tokens that rows compute which do not decode."""
        return int(self.num_query[~self.decodes].sum())

    @property
    def num_logits(self) -> Int64Array:
        """int64 [R], logit rows of each row: one for each token that is drawn after."""
        return self.samples + self.decodes * self.num_drafts

    @cached_property
    def is_decode(self) -> bool:
        """Whether every row computes its last token and its drafts, and that is all."""
        if self.num_drafts:
            return bool(self.decodes.all())
        one_token_each = len(self.rows) == self.num_tokens
        return (
            one_token_each and bool(self.samples.all()) and not self.runs_drafter and not self.spans
        )

    @cached_property
    def awaits_masks(self) -> bool:
        """Whether the step's draw is launched apart from its forward, once masks are filled."""
        return bool((self.constrained & self.samples).any())

    @property
    def reports_drafts(self) -> bool:
        """Whether the drafts made after the step are part of its result."""
        return bool((self.constrained & self.proposes).any())

    @property
    def max_seq_len(self) -> int:
        """Upper bound of tokens any row's attention sees."""
        return int((self.starts + self.num_query).max())


def prompt_spans(plan: StepPlan, prefilling: Int64Array) -> list[PromptSpan]:
    """The query tokens after which the logprobs of prompt tokens are wanted.

    Args:
        prefilling: int64, indices of the plan's rows that compute prompt tokens.
    """
    spans = []
    for row_idx in prefilling.tolist():
        choice = plan.choices[row_idx]
        wanted = choice.request.prompt_logprobs
        if choice.prompt_parts is None or wanted is None:
            continue
        start = int(plan.starts[row_idx])
        first = max(wanted.start - 1 - start, 0)
        last = min(int(plan.num_query[row_idx]), choice.prompt_len - 1 - start)
        if first < last:
            spans.append(PromptSpan(row_idx, first, last, choice))
    return spans


@dataclass(frozen=True)
class StepMasks:
    """Where the masks of a step's N logit rows are in the runner's `HostMasks`.

    Attributes:
        count: masks written, the first of the buffer.
        slots: int32 [N], the mask of each logit row; -1 where every token is allowed.
    """

    count: int
    slots: Int32Array

    @classmethod
    def none(cls, plan: StepPlan) -> StepMasks:
        """No mask for any logit row of a plan."""
        return cls(0, np.full(int(plan.num_logits.sum()), -1, dtype=np.int32))


@dataclass(frozen=True)
class StepResult:
    """The result of a step on the host: L rows drew, from N logit rows in all.

    Attributes:
        token_ids: int32 [L, 1 + num_drafts], in the plan's order of drawing rows.
        num_new: int32 [L], how many of each row's tokens were drawn; the others are undefined.
        failed: uint8 [L], `Finish.NAN` or `Finish.EMPTY` where nothing could be drawn after those,
            else `Finish.RUNNING`.
        num_offered, num_accepted: int32 [L], drafts verified and kept; None without drafts.
        logprobs: logprobs of N positions, None where no row asked for any.
        prompt_logprobs: logprobs of each of the plan's spans, in order.
        drafts: int32 [P, k], made for the next step of the rows that the plan proposes for, an id
            outside the vocabulary being none; None unless the plan `reports_drafts`.
    """

    token_ids: Int32Array
    num_new: Int32Array
    failed: UInt8Array
    num_offered: Int32Array | None
    num_accepted: Int32Array | None
    logprobs: LogprobArrays | None
    prompt_logprobs: list[LogprobArrays]
    drafts: Int32Array | None = None


class StepCosts(NamedTuple):
    """Measured times of decode steps.

    Attributes:
        sizes: numbers of rows, ascending.
        plain_s, drafting_s: seconds of a step of as many rows, without drafts and with.
    """

    sizes: tuple[int, ...]
    plain_s: tuple[float, ...]
    drafting_s: tuple[float, ...]

    def ratio(self, num_rows: int) -> float:
        """How many times longer a step of so many rows takes with drafts."""
        i = min(bisect.bisect_left(self.sizes, num_rows), len(self.sizes) - 1)
        return self.drafting_s[i] / self.plain_s[i]


class RunnerLostError(RuntimeError):
    """The device failed in a way that no later step can survive."""


class StepHandle(Protocol):
    """A step that was launched.

    Attributes:
        plan: the plan it runs.
    """

    plan: StepPlan

    def draw(self, masks: StepMasks) -> None:
        """Issue the draw of a step that awaits masks, which must follow its launch."""
        ...

    def wait(self) -> StepResult:
        """Wait for the step's result.

        Raises:
            RunnerLostError: no later step can run either.
            Exception: the error that this step alone raised.
        """
        ...


class StepFailedError(RuntimeError):
    """A step raised, and later steps can run. The message is one line for its requests."""


Result_co = TypeVar("Result_co", covariant=True)


class Launched(Protocol[Result_co]):
    """A step of either kind: `StepHandle`, or `ScoringHandle` of `engine.contracts.scoring`."""

    def wait(self) -> Result_co: ...


def result_of(step: Launched[Result_co]) -> Result_co:
    """Wait for the result of a launched step, telling its own failure from the runner's.

    Raises:
        StepFailedError: the step raised; it ends the step's requests and no others.
        RunnerLostError: as `StepHandle.wait`.
    """
    try:
        return step.wait()
    except RunnerLostError:
        raise
    except Exception as error:
        raise StepFailedError(kind_and_line(error)) from error


class Runner(ScoringRunner, Protocol):
    """Runs plans in the order they are launched, without waiting for their results.

    Attributes:
        rows_by_path: number of rows drawn so far by each of the sampler's paths.
    """

    @property
    def rows_by_path(self) -> dict[str, int]: ...

    def launch(self, plan: StepPlan) -> StepHandle:
        """Issue a step after those already issued; where it awaits masks, all but its draw."""
        ...

    def weights(self, command: AnyWeightCommand) -> WeightReply:
        """Read or change weights on all ranks, while no step is in flight.

        Raises:
            WeightUpdateError: nothing changed.
            RunnerLostError: the weights would be a mixture.
        """
        ...

    def give_back(self, parts: Sequence[MemoryPart], *, keeps_weights: bool) -> None:
        """Give parts of the memory of all ranks back, while no step is in flight.

        Args:
            keeps_weights: weights are copied to the host; else they are let go.

        Raises:
            ControlError: this engine's memory cannot be given back.
        """
        ...

    def take_again(self, parts: Sequence[MemoryPart]) -> None:
        """Take parts of the memory again that were given back."""
        ...


class StartingRunner(Runner, Protocol):
    """A runner that may run steps of the start's own, before an engine serves with it."""

    def forget(self, rows: Int32Array) -> None:
        """Vacate rows [n] at once instead of with the next plan, and count none as drawn.

        All steps have been waited for.
        """
        ...
