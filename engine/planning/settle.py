"""Enters the result of a step that was read back: tokens known, choices ended. No torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.arrays import Int32Array, Int64Array, UInt8Array
from engine.contracts.runner import StepResult
from engine.messages.step_output import Finish, Origin
from engine.plan import StepPlan
from engine.rows import BoolArray, RowTable


class Settled(NamedTuple):
    """The S rows that drew tokens in a step and still belong to the choice that drew them.

    Attributes:
        rows: int64 [S].
        token_ids: int32 [S, W], tokens drawn, in order.
        num_new: int64 [S], how many of these each row keeps.
        logit_idx: int64 [S], index of each row's first token in the result's logprobs.
        finish: uint8 [S], `Finish` codes.
        result_idx: int64 [S], index of each row in the step's result.
        first_drawn: int64, the rows among these that drew their choice's first token.
        num_offered, num_accepted: int32 [S], drafts verified and kept; None without drafts.
    """

    rows: Int64Array
    token_ids: Int32Array
    num_new: Int64Array
    logit_idx: Int64Array
    finish: UInt8Array
    result_idx: Int64Array
    first_drawn: Int64Array
    num_offered: Int32Array | None = None
    num_accepted: Int32Array | None = None

    @property
    def num_drafts(self) -> int:
        """The drafts that each decoding row brought."""
        return int(self.token_ids.shape[1]) - 1

    def origins(self) -> UInt8Array:
        """Where each token came from: `Origin` codes uint8 [S, W].

        The drafts that were accepted are a row's first tokens. The token after them replaces the
        next draft, where one was verified, or after the last.
        """
        offered, accepted = self.num_offered, self.num_accepted
        if offered is None or accepted is None:
            return np.full(self.token_ids.shape, Origin.DRAWN, dtype=np.uint8)
        last = np.where(accepted < offered, Origin.RECOVERED, Origin.BONUS)
        last[offered == 0] = Origin.DRAWN
        is_draft = np.arange(self.token_ids.shape[1]) < accepted[:, None]
        return np.where(is_draft, Origin.ACCEPTED, last[:, None]).astype(np.uint8)


def settle(table: RowTable, plan: StepPlan, result: StepResult) -> Settled:
    """Enter a step's result into the rows.

    Rows vacated since the step was planned are passed over. A choice that stopped was planned once
    more before its stop was read back; the token of that step is dropped here.
    """
    live = table.epoch[plan.host_rows] == plan.epochs
    drew = live & plan.samples
    table.num_settled[plan.host_rows[live]] = (plan.starts + plan.num_query)[live]

    rows, result_idx = plan.host_rows[drew], live[plan.samples].nonzero()[0]
    tokens = result.token_ids.take(result_idx, axis=0)
    num_drawn = result.num_new[result_idx].astype(np.int64)
    first_drawn = rows[table.num_known[rows] == table.prompt_len[rows]]
    finish, num_new = _finish(table, rows, tokens, num_drawn, result.failed[result_idx])
    _enter(table, rows, tokens, num_new)
    table.num_drawing[rows] -= 1
    logit_idx = result_idx
    if plan.num_drafts:
        num_logits = plan.num_logits
        logit_idx = (np.cumsum(num_logits) - num_logits)[drew]
        _take_back(table, rows, num_logits[drew] - num_drawn, plan.decodes[drew])
    return Settled(
        rows,
        tokens,
        num_new,
        logit_idx,
        finish,
        result_idx,
        first_drawn,
        num_offered=None if result.num_offered is None else result.num_offered[result_idx],
        num_accepted=None if result.num_accepted is None else result.num_accepted[result_idx],
    )


def _take_back(table: RowTable, rows: Int64Array, refused: Int64Array, decoded: BoolArray) -> None:
    """Lower the scheduled counts, which assumed that every draft would be accepted."""
    table.num_tokens[rows] -= refused
    table.num_computed[rows] -= refused * decoded
    table.num_settled[rows[decoded]] = table.num_known[rows[decoded]] - 1


def _finish(
    table: RowTable,
    rows: Int64Array,
    tokens: Int32Array,
    num_drawn: Int64Array,
    failed: UInt8Array,
) -> tuple[UInt8Array, Int64Array]:
    """The `Finish` code of each row, and how many of its tokens the row keeps."""
    known, limit = table.num_known[rows], table.limit[rows]
    is_stop = table.stop_ids.take(rows, axis=0)[:, None] == tokens[:, :, None]
    if not np.count_nonzero(is_stop) and not np.count_nonzero(known + num_drawn >= limit):
        return failed, num_drawn  # as in nearly every step; the rest tells which tokens end a row
    order = np.arange(tokens.shape[1])
    before = known[:, None] + order  # tokens known before each of the new ones
    is_drawn = order < num_drawn[:, None]
    stopped = is_stop.any(axis=2) & is_drawn
    stopped &= before >= table.min_known[rows, None]
    ended = stopped | (is_drawn & (before + 1 >= limit[:, None]))
    first = ended.argmax(axis=1)
    ends = ended.any(axis=1)
    num_new = np.where(ends, first + 1, num_drawn)
    finish = failed.copy()
    finish[ends] = Finish.LENGTH
    finish[ends & stopped[np.arange(len(rows)), first]] = Finish.STOP
    return finish, num_new


def _enter(table: RowTable, rows: Int64Array, tokens: Int32Array, num_new: Int64Array) -> None:
    """Append each row's first `num_new` tokens to the known ones; later ones are undefined."""
    known = table.num_known[rows]
    table.token_ids[rows[:, None], known[:, None] + np.arange(tokens.shape[1])] = tokens
    table.num_known[rows] = known + num_new
