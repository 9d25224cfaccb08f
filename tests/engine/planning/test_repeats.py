"""Steps planned from the one before are those that would be planned anew."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import pytest

from engine.messages.step_output import Finish
from engine.plan import StepPlan
from engine.planning.settle import settle
from tests.engine.planning.scheduler_setup import SIZE, Setup
from tests.engine.planning.settled_steps import result_of

NAMES = (
    *("rows", "num_query", "starts", "samples", "epochs", "num_prompt_tokens", "num_drafts"),
    *("num_proposed", "decodes", "proposes", "constrained", "grants", "released", "undrafted"),
    *(
        "spans",
        "num_tokens",
        "num_prefilled",
        "host_rows",
        "is_decode",
        "awaits_masks",
        "reports_drafts",
        "max_seq_len",
    ),
)


def _plain(value: Any) -> Any:
    return (value.dtype, value.tolist()) if isinstance(value, np.ndarray) else value


def facts(plan: StepPlan | None) -> dict[str, Any] | None:
    """What a plan says, with handles in place of choices."""
    if plan is None:
        return None
    said = {name: _plain(getattr(plan, name)) for name in NAMES}
    handles = [choice.request.handle for choice in plan.choices]
    admitted = [(each.row, each.choice.request.handle) for each in plan.admissions]
    return said | {"choices": handles, "admitted": admitted}


class Traffic:
    """A scheduler with steps in flight, over choices that come, reach their limits or are ended."""

    def __init__(self, seed: int, *, anew: bool, **setup: Any) -> None:
        self.setup = Setup(max_rows=4, num_blocks=24, **setup)
        self.rng, self.in_flight, self.num_repeated = random.Random(seed), deque[StepPlan](), 0
        self._next = self.setup.scheduler._repeats.next
        mended = (lambda: None) if anew else self._counted
        self.setup.scheduler._repeats.next = mended  # type: ignore[method-assign]

    def _counted(self) -> StepPlan | None:
        plan = self._next()
        self.num_repeated += plan is not None
        return plan

    def turn(self) -> tuple[dict[str, Any] | None, list[int], list[int]]:
        rng, setup = self.rng, self.setup
        table = setup.table
        if rng.random() < 0.08:
            prompt = [rng.randrange(20) for _ in range(rng.randrange(1, 12))]
            setup.enqueue(prompt, rng.randrange(1, 40), priority=rng.randrange(2))
        if table.running and rng.random() < 0.03:
            self._end(rng.choice(table.running))
        plan = setup.scheduler.plan()
        setup.pool.check([table.blocks[row] for row in table.running])
        said = facts(plan), table.num_tokens.tolist(), table.num_drawing.tolist()
        if plan is not None:
            self.in_flight.append(plan)
        while len(self.in_flight) > 1 or (plan is None and self.in_flight):
            self._read_back(self.in_flight.popleft())
        return said

    def _read_back(self, plan: StepPlan) -> None:
        """As the engine does."""
        drew = plan.rows[plan.samples]
        settled = settle(self.setup.table, plan, result_of([[30 + row] for row in drew.tolist()]))
        self.setup.prefixes.register(settled.rows)
        for row in settled.rows[settled.finish != Finish.RUNNING].tolist():
            self._end(row)

    def _end(self, row: int) -> None:
        self.setup.table.choice(row).ended = True
        self.setup.scheduler.release(row)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("budget", [2, 16])  # 2 are fewer than rows
@pytest.mark.parametrize("seed", range(8))
def test_plans_are_those_made_anew(seed: int, budget: int, policy: str) -> None:
    repeated, anew = (
        Traffic(seed, anew=anew, policy=policy, budget=budget) for anew in (False, True)
    )
    for _ in range(400):
        assert repeated.turn() == anew.turn()
    assert repeated.num_repeated > 20
    assert anew.num_repeated == 0


def test_a_lone_row_is_planned_anew_once_a_block() -> None:
    setup = Setup()
    setup.enqueue([1, 2], max_tokens=40)
    plans = [setup.step() for _ in range(1 + 5 * SIZE)]
    anew = [i for i, plan in enumerate(plans) if i == 0 or plan.rows is not plans[i - 1].rows]
    # The prompt fills half of the first block; the step after it is the first of a row that goes
    # on, and each block's first token is planned with the block.
    assert anew == [0, 1, 3, 7, 11, 15, 19]
    assert [len(plans[i].grants) for i in anew] == [1, 0, 1, 1, 1, 1, 1]
    assert sum(len(plan.grants) for plan in plans) == 6


def test_more_rows_than_a_block_has_tokens_are_planned_anew() -> None:
    """One of them needs a block nearly always."""
    setup = Setup(max_rows=SIZE + 1, burst_rows=SIZE + 1, num_blocks=100)
    for token in range(SIZE + 1):
        setup.enqueue([token], max_tokens=40)
    setup.step()
    plans = [setup.step() for _ in range(2 * SIZE)]
    assert all(len(plan.rows) == SIZE + 1 for plan in plans)
    assert len({id(plan.rows) for plan in plans}) == len(plans)
