"""Decides which rows draft and when: the part of speculation on the host. No torch.

Where drafts are sampled by noise of their own (`gumbel`), the tokens of a row depend on them, and
on the positions they begin at. So a seeded row then has k drafts in every step whatever the load,
and its tokens depend on that row alone. Other rows have as many as pay
(`engine.planning.draft_choice`), or k while the batch is small where nothing was measured; so have
all rows of other drafters, whose drafts change no token. While the drafter does not run, rows that
are computed get a gap in its KV cache; they draft again once they are admitted anew and computed
from the start.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from engine.arrays import Int64Array
from engine.contracts.runner import StepCosts
from engine.messages.request import Request
from engine.planning.draft_choice import DraftChoice
from engine.planning.settle import Settled
from engine.rows import Choice, RowTable
from engine.speculative_config import SpeculativeConfig

DRAFTS_OFF_FROM = 129
"""The number of rows from which on nobody drafts where no times of steps were measured."""


@dataclass
class DraftSwitch:
    """Whether an update of the weights switched a drafter off, until its own are updated."""

    is_off: bool = False


@dataclass(frozen=True)
class DraftRules:
    """Properties of a drafter that the host plans by.

    Attributes:
        num_tokens: k, most drafts per row and step; 0 without a drafter.
        max_rows: with more rows running nobody drafts, unless one of them is pinned; None sets no
            limit.
        costs: measured times of steps, by which numbers of drafts are chosen; None has k always.
        choice, switch: of one engine, see `begun`.
        has_cache: the drafter has keys and values of its own, in which a row may have a gap.
        looks_ahead: the drafter's entry at a position depends on the next token, so that the last
            block of a shared prefix cannot be shared.
        draws_differ: drafts are sampled, so that the tokens of a seeded row depend on them.
        shares_outputs: drafts follow recent outputs of other requests too.
    """

    num_tokens: int = 0
    max_rows: int | None = 0
    has_cache: bool = False
    looks_ahead: bool = False
    draws_differ: bool = False
    shares_outputs: bool = False
    costs: StepCosts | None = None
    choice: DraftChoice | None = None
    switch: DraftSwitch = field(default_factory=DraftSwitch)

    def begun(self) -> DraftRules:
        """The rules of an engine that begins, which choose by what it will have accepted."""
        choice = self.choice if self.costs is None else DraftChoice(self.costs)
        return replace(self, choice=choice, switch=DraftSwitch())

    @property
    def shares_last_block(self) -> bool:
        """Whether the last block of a prefix that is found may be shared."""
        return self.switch.is_off or not self.looks_ahead

    @property
    def lookahead(self) -> int:
        """The number of positions past a step's tokens that the drafter may write to."""
        return self.num_tokens + 1 if self.num_tokens else 0

    def pins(self, request: Request) -> bool:
        """Whether the request's rows must draft whatever the load."""
        params, may_draft = request.params, self.draws_differ and not self.switch.is_off
        return may_draft and params.seed is not None and not params.greedy

    def shares(self, request: Request) -> bool:
        """Whether others may draft from the request's outputs; salts keep theirs to themselves."""
        return self.shares_outputs and not request.cache_salt

    def reads_outputs(self, request: Request) -> bool:
        """Whether the request's rows may draft from outputs of others.

        The tokens of a pinned row depend on that row alone.
        """
        return self.shares(request) and not self.pins(request)

    def wanted(self, table: RowTable) -> int:
        """The number of drafts that the running rows should have, 0 to k."""
        if not self.num_tokens or self.switch.is_off:
            return 0
        running = table.running
        if bool(table.is_pinned[running].any()):
            return self.num_tokens
        if self.max_rows is not None and len(running) > self.max_rows:
            return 0
        return self.num_tokens if self.choice is None else self.choice.best(len(running))

    def learn(self, settled: Settled) -> None:
        """Note what became of the drafts of a step."""
        if self.choice is not None and len(settled.rows):
            self.choice.learn(len(settled.rows), settled.num_drafts, settled.num_accepted)

    def num_drafts(self, table: RowTable, decoding: Int64Array) -> int:
        """The number of drafts that each decoding row brings to the next step.

        Those of them that the step before did not make are none.
        """
        if not self.num_tokens or not table.has_drafts[decoding].any():
            return 0
        return self.wanted(table)


NO_DRAFTS = DraftRules()


def draft_rules(config: SpeculativeConfig | None, costs: StepCosts | None = None) -> DraftRules:
    """The rules that follow from a configuration, None being no drafter.

    Args:
        costs: where the times of steps were measured.
    """
    if config is None:
        return NO_DRAFTS
    off_from = config.disable_by_batch_size
    if off_from is None and costs is None:
        off_from = DRAFTS_OFF_FROM
    return DraftRules(
        num_tokens=config.num_speculative_tokens,
        max_rows=None if off_from is None else off_from - 1,
        costs=costs,
        has_cache=config.method not in ("ngram", "suffix"),
        looks_ahead=config.method in ("eagle", "eagle3", "mtp"),
        # Not where acceptance is synthetic: its studies of cost must cost what serving does.
        draws_differ=config.draft_source == "gumbel",
        shares_outputs=bool(config.suffix_decoding_max_cached_requests),
    )


class DraftCounts:
    """Counts drafts verified and accepted; a count is 2 + k numbers, as in `DraftStats`.

    Attributes:
        total: int64 [2 + k], all drafts since the engine started.
        of_row: int64 [max_rows, 2 + k], drafts of the choice that holds each row.
    """

    def __init__(self, max_rows: int, num_tokens: int) -> None:
        self.total: Int64Array = np.zeros(2 + num_tokens, dtype=np.int64)
        self.of_row: Int64Array = np.zeros((max_rows, 2 + num_tokens), dtype=np.int64)

    def open(self, row: int, choice: Choice) -> None:
        """Continue the counts of a choice that got a row."""
        self.of_row[row] = 0 if choice.drafts is None else choice.drafts
        choice.drafts = self.of_row[row]

    def add(self, settled: Settled) -> None:
        """Count the drafts that a step verified, and how many of the first it accepted."""
        rows, offered, accepted = settled.rows, settled.num_offered, settled.num_accepted
        if offered is None or accepted is None:
            return
        places = np.arange(self.of_row.shape[1] - 2)
        kept = places < accepted[:, None]
        counts = np.column_stack((offered > 0, offered, kept)).astype(np.int64)
        self.of_row[rows] += counts
        self.total += counts.sum(axis=0)
