"""Decides which choices run and how many tokens each computes in a step. No torch.

A step has a token budget. Decoding rows come first, prompts are split into chunks that fit what is
left, and a choice whose next token finds no free block preempts the ones served after it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.adapters.registry import AdapterRegistry
from engine.arrays import Int32Array, Int64Array
from engine.config import SchedulerConfig
from engine.contracts.adapters import NO_SLOT
from engine.memory.blocks import BlockPool
from engine.plan import SnapshotGrant, StepPlan, prompt_spans
from engine.planning.drafting import DraftRules
from engine.planning.pace import Pace
from engine.planning.prefixes import PrefixIndex
from engine.planning.repeats import Repeats
from engine.planning.row_blocks import RowBlocks
from engine.planning.row_snapshots import RowSnapshots
from engine.planning.token_counts import token_counts
from engine.planning.waiting import Rank, WaitingChoices
from engine.rows import BoolArray, Choice, RowTable

_NO_ROWS: Int64Array = np.zeros(0, dtype=np.int64)


class Scheduler:
    """Plans each step from the tokens scheduled by earlier ones, whose results may not be read yet.

    Attributes:
        num_preemptions: times a running choice lost its row.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        block_size: int,
        pool: BlockPool,
        table: RowTable,
        prefixes: PrefixIndex,
        *,
        on_preempt: Callable[[int], None],
        drafting: DraftRules,
        pace: Pace,
        snapshots: RowSnapshots | None = None,
        adapters: AdapterRegistry | None = None,
    ) -> None:
        """Make a scheduler without choices.

        Args:
            on_preempt: called with a row before its choice is preempted.
            snapshots: of rows' states, where layers keep states.
        """
        self._config = config
        self._pool = pool
        self._table = table
        self._prefixes = prefixes
        self._on_preempt = on_preempt
        self._drafting = drafting
        self._pace = pace
        self._snapshots = snapshots
        self._adapters = adapters
        self._blocks = blocks = RowBlocks(table, block_size, drafting.lookahead)
        self._waiting = WaitingChoices(
            config, pool, table, blocks, prefixes, drafting, snapshots, adapters
        )
        self._released: list[int] = []
        self._outputs: list[Int32Array] = []
        self._repeats = Repeats(table, block_size, snapshots)
        self.num_preemptions = 0

    # -- queue ------------------------------------------------------------------------------

    def enqueue(self, choice: Choice) -> None:
        """Let a choice wait for a row in order of rank."""
        self._waiting.push(choice)

    def forget(self, choice: Choice) -> None:
        """Let a choice that ended wait for a row no longer, if it did."""
        self._waiting.discard(choice)

    def release(self, row: int) -> None:
        """Take row and blocks from a choice that ended."""
        table = self._table
        if self._drafting.shares(table.choice(row).request):
            output = table.token_ids[row, table.prompt_len[row] : table.num_known[row]]
            self._outputs.append(output.copy())
        self._release(row)

    def _release(self, row: int) -> None:
        """Take row and blocks from a choice that ended or is preempted."""
        self._pool.release(self._table.blocks[row])
        if self._snapshots is not None:
            self._snapshots.release(row)
        if self._adapters is not None and self._table.adapter_slot[row] != NO_SLOT:
            self._adapters.let_go(int(self._table.adapter_slot[row]))
        self._table.vacate(row)
        self._released.append(row)

    # -- planning ---------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """Plan the next step; None when nothing can be computed before results are read back."""
        if not self._waiting and not self._released and (plan := self._repeats.next()) is not None:
            return plan
        rows = counts = _NO_ROWS
        num_drafts, room = 0, self._config.step_tokens
        if self._table.running:
            rows, counts, num_drafts, room = self._plan_running()
        if self._waiting and (admitted := self._waiting.admit(room)):
            rows = np.concatenate([rows, np.fromiter(admitted.keys(), dtype=np.int64)])
            counts = np.concatenate([counts, np.fromiter(admitted.values(), dtype=np.int64)])
        return self._build(rows, counts, num_drafts) if len(rows) else None

    def _plan_running(self) -> tuple[Int64Array, Int64Array, int, int]:
        """Plan the running rows, which may preempt some.

        Returns:
            Rows and the tokens that each computes, the drafts of each row that decodes, and the
            tokens that choices admitted beside them may compute.
        """
        table = self._table
        rows, decodes = self._running_in_order()
        num_drafts = self._drafting.num_drafts(table, rows[decodes])
        # A choice's last token is never computed: nothing follows it.
        may_draw = table.num_known[rows] + table.num_drawing[rows] < table.limit[rows]
        prefill = table.prefill_end[rows] - table.num_computed[rows]
        prefill = np.minimum(prefill, table.most_prompt[rows])
        pending = np.where(decodes, (1 + num_drafts) * may_draw, prefill)
        most_prompt = self._most_prompt(decodes)
        counts = token_counts(pending, decodes, self._config.step_tokens, most_prompt)
        missing = self._blocks.missing(rows, counts)
        epochs = table.epoch[rows]
        for i in ((missing > 0) & (counts > 0)).nonzero()[0].tolist():
            if table.epoch[rows[i]] == epochs[i]:  # no earlier row took its place
                self._make_room(int(rows[i]), int(missing[i]))
        kept = (table.epoch[rows] == epochs) & (counts > 0)
        rows, counts, decodes = rows[kept], counts[kept], decodes[kept]
        budget = self._config.step_tokens - int(counts.sum())
        room = min(budget, most_prompt - int(counts[~decodes].sum()))
        return rows, counts, num_drafts, room

    def _most_prompt(self, decodes: BoolArray) -> int:
        """The prompt tokens that the step may have, so that it holds up no row that decodes."""
        wanted = self._pace.prompt_tokens if np.count_nonzero(decodes) else None
        return self._config.step_tokens if wanted is None else wanted

    def _running_in_order(self) -> tuple[Int64Array, BoolArray]:
        """Rows by rank, decoding rows first, so that no prefill stalls them; and which decode."""
        table = self._table
        running = table.running
        if self._config.policy == "priority":
            running = sorted(running, key=self._row_rank)
        rows = np.array(running, dtype=np.int64)
        decodes = table.num_computed[rows] >= table.prefill_end[rows]
        if np.count_nonzero(decodes) == len(rows):
            return rows, decodes
        order = np.argsort(~decodes, kind="stable")
        return rows[order], decodes[order]

    def _row_rank(self, row: int) -> Rank:
        return self._waiting.rank(self._table.choice(row))

    def _make_room(self, row: int, missing: int) -> None:
        """Grant blocks to a running row; preempts the last in rank, in the end the row itself."""
        while True:
            blocks = self._pool.grant(missing)
            if blocks is not None:
                self._blocks.append(row, blocks)
                return
            victim = max(self._table.running, key=self._row_rank)
            self._preempt(victim)
            if victim == row:
                return

    def preempt_all(self, *, undrawn_only: bool = False) -> None:
        """Let running choices wait again, so that they compute all their keys anew.

        Args:
            undrawn_only: of those alone that have drawn nothing.
        """
        table = self._table
        for row in list(table.running):
            if not undrawn_only or table.num_known[row] == table.prompt_len[row]:
                self._preempt(row)

    def _preempt(self, row: int) -> None:
        """Let a running choice wait again with the tokens read back.

        Noise depends on seed and position alone, so that tokens in flight are drawn again the same.
        """
        choice = self._table.choice(row)
        choice.token_ids = self._table.token_ids[row, : self._table.num_known[row]].copy()
        choice.hashes = None
        if choice.prompt_parts is not None:
            choice.prompt_parts = []
        self._blocks.grants = [g for g in self._blocks.grants if g.row != row]
        self._on_preempt(row)
        self._release(row)
        self.enqueue(choice)
        choice.num_preemptions += 1
        self.num_preemptions += 1

    def num_promised(self) -> int:
        """The number of blocks that running choices still need for tokens they already have."""
        return self._blocks.num_promised()

    @property
    def prefix_counts(self) -> tuple[int, int]:
        """Prompt tokens of admitted choices that were looked up, and that were found computed."""
        return self._waiting.prefix_queries, self._waiting.prefix_hits

    # -- the plan ---------------------------------------------------------------------------

    def _build(self, rows: Int64Array, counts: Int64Array, num_drafts: int) -> StepPlan:
        table = self._table
        decodes = table.num_computed[rows] >= table.prefill_end[rows]
        if len(rows) > 1 and np.count_nonzero(decodes) < len(rows):
            order = np.argsort(np.where(decodes, 0, np.where(counts > 1, 2, 1)), kind="stable")
            rows, counts, decodes = rows[order], counts[order], decodes[order]
        starts = table.num_computed[rows]
        ends = table.num_computed[rows] = starts + counts
        ready = ends >= table.prefill_end[rows]
        samples = decodes | (ready & (ends == table.num_tokens[rows]))
        table.num_tokens[rows] += samples + decodes * num_drafts
        table.num_drawing[rows] += samples
        num_proposed = num_drafts
        if not num_drafts or not decodes.all():  # choices may have come since they were chosen
            wanted = 0 if table.has_gap[rows].all() else self._drafting.wanted(table)
            num_proposed = max(num_drafts, wanted)
        undrafted = rows[decodes & ~table.has_drafts[rows]] if num_drafts else rows[:0]
        prompt_lens = table.prompt_len[rows]
        plan = StepPlan(
            rows=rows.astype(np.int32),
            num_query=counts.astype(np.int32),
            starts=starts.astype(np.int32),
            samples=samples,
            epochs=table.epoch[rows],
            choices=table.choices_of(rows),
            num_prompt_tokens=int(np.minimum(np.maximum(prompt_lens - starts, 0), counts).sum()),
            num_drafts=num_drafts,
            num_proposed=num_proposed,
            decodes=decodes,
            proposes=self._propose(rows, ready, num_proposed > 0),
            constrained=table.is_constrained[rows],
            admissions=self._waiting.take_admissions(),
            grants=self._blocks.take_grants(),
            snapshots=self._snapshot_grants(rows, ends, decodes),
            released=self._released,
            outputs=self._outputs,
            undrafted=undrafted.tolist(),
            adapters=self._slots_of(rows),
        )
        plan.spans = prompt_spans(plan, (starts < prompt_lens).nonzero()[0])
        self._released, self._outputs = [], []
        if not self._drafting.num_tokens:
            self._repeats.note(plan)
        return plan

    def _snapshot_grants(
        self, rows: Int64Array, ends: Int64Array, decodes: BoolArray
    ) -> list[SnapshotGrant]:
        return [] if self._snapshots is None else self._snapshots.take(rows, ends, decodes)

    def _slots_of(self, rows: Int64Array) -> Int32Array | None:
        """The slots of rows' adapters; None where no row has one."""
        if self._adapters is None:
            return None
        slots = self._table.adapter_slot[rows]
        return slots.astype(np.int32) if (slots != NO_SLOT).any() else None

    def _propose(self, rows: Int64Array, ready: BoolArray, runs_drafter: bool) -> BoolArray:
        """The rows for which the drafter proposes after a step.

        A drafter that does not run misses the step's tokens, which leaves a gap in the rows.
        """
        table = self._table
        table.has_gap[rows] |= self._drafting.has_cache and not runs_drafter
        proposes = ready & ~table.has_gap[rows] & runs_drafter
        table.has_drafts[rows] = proposes
        return proposes
