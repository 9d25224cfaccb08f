"""Turning a step that was read back into facts: tokens known, choices ended. No torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.plan import StepPlan
from engine.request import Finish, Int32Array, Int64Array, UInt8Array
from engine.rows import BoolArray, RowTable


@dataclass(frozen=True)
class Settled:
    """What a step's results mean: S rows whose choice still runs drew a token.

    Attributes:
        rows: int32 [S].
        result_idx: int64 [S], where the step's result holds each row's token.
        token_ids: int32 [S].
        finish: uint8 [S], `Finish` codes; a row ended by NAN has no token.
    """

    rows: Int32Array
    result_idx: Int64Array
    token_ids: Int32Array
    finish: UInt8Array


def settle(table: RowTable, plan: StepPlan, token_ids: Int32Array, bad: BoolArray) -> Settled:
    """Enter a step's results into the rows' truth.

    Rows vacated since the step was planned are passed over: that is how the token a finished
    choice drew one step too many is dropped.

    Args:
        token_ids: int32 [num drawing rows of the plan]. bad: bool, logits that were not usable.
    """
    live = table.epoch[plan.rows] == plan.epochs
    settled = plan.starts[live] + plan.num_query[live]
    table.num_settled[plan.rows[live]] = settled

    drew = live & plan.samples
    rows = plan.rows[drew]
    result_idx = (np.cumsum(plan.samples) - 1)[drew]
    tokens, failed = token_ids[result_idx], bad[result_idx]
    known = table.num_known[rows]
    finish = _finish(table, rows, known, tokens, failed)
    table.token_ids[rows, known] = tokens
    table.num_known[rows] = known + ~failed
    return Settled(rows, result_idx, tokens, finish)


def _finish(
    table: RowTable, rows: Int32Array, known: Int64Array, tokens: Int32Array, failed: BoolArray
) -> UInt8Array:
    stopped = (table.stop_ids[rows] == tokens[:, None]).any(axis=1)
    stopped &= known >= table.min_known[rows]
    full = known + 1 >= table.limit[rows]
    conditions = [failed, stopped, full]
    return np.select(conditions, [Finish.NAN, Finish.STOP, Finish.LENGTH], Finish.RUNNING).astype(
        np.uint8
    )
