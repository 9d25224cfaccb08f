"""A step's plan, which the engine makes and the runner runs. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from engine.arrays import Int32Array, Int64Array
from engine.contracts.adapters import AdapterLoad
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
        proposes: bool [R], rows for which the drafter makes the next step's drafts.
        constrained: bool [R], rows whose choice draws under masks of its own.
        epochs: int64 [R], epochs of the rows when the step was planned.
        choices: the choice that held each row then.
        num_prompt_tokens: prompt tokens among those computed.
        num_drafts: 0 to k, the same for every decoding row.
        num_proposed: drafts that the drafter makes for each row of `proposes`, in decode steps with
            drafts as many as they verify; 0: it does not run, and does not see the step's tokens.
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
    num_proposed: int
    decodes: BoolArray
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
        num_proposed: int = 0,
        adapters: Int32Array | None = None,
    ) -> StepPlan:
        """A step that admits choices to rows 0, 1, ..., computes their tokens and draws in each.

        Args:
            num_tokens: that each row computes, those of its drafts included.
            limit: as in `Admission`. blocks: [R, blocks a row].
            adapters: as in `StepPlan`.
            num_drafts: as in `StepPlan`; where there are any, all rows decode.
            num_proposed: as in `StepPlan`; 0: the drafter does not run.
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
            num_proposed=num_proposed,
            decodes=np.full(len(rows), num_drafts > 0),
            proposes=np.full(len(rows), num_proposed > 0),
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

    @property
    def runs_drafter(self) -> bool:
        """Whether the drafter sees this step's tokens."""
        return self.num_proposed > 0

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
