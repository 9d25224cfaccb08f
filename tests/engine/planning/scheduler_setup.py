"""A scheduler over few rows, whose steps the test reads back by itself."""

from __future__ import annotations

from typing import Any, Literal

from engine.config import CacheConfig, SchedulerConfig
from engine.memory.blocks import BlockPool
from engine.plan import StepPlan
from engine.planning.drafting import NO_DRAFTS, DraftRules
from engine.planning.pace import Pace
from engine.planning.prefixes import PrefixIndex
from engine.planning.scheduler import Scheduler
from engine.rows import Choice, RowTable
from sampling.params import SamplingParams
from tests.engine.traffic import FRONTEND, request

SIZE = 4
"""Tokens in a block."""


class Setup:
    """A scheduler over few rows and blocks of 4 tokens; a step is read back as soon as planned."""

    def __init__(
        self,
        *,
        num_blocks: int = 40,
        budget: int = 16,
        max_rows: int = 4,
        burst_rows: int = 4,
        chunked_prefill: bool = True,
        policy: Literal["fcfs", "priority"] = "fcfs",
        drafting: DraftRules = NO_DRAFTS,
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.table = RowTable(max_rows, 65, 1 + drafting.num_tokens)
        self.preempted: list[int] = []
        cache = CacheConfig(block_size=SIZE)
        config = SchedulerConfig(
            max_rows=max_rows,
            max_step_tokens=budget,
            burst_rows=burst_rows,
            chunked_prefill=chunked_prefill,
            policy=policy,
        )
        self.prefixes = PrefixIndex(cache, self.pool, self.table)
        self.scheduler = Scheduler(
            config,
            SIZE,
            self.pool,
            self.table,
            self.prefixes,
            on_preempt=self.preempted.append,
            drafting=drafting,
            pace=Pace(None),
        )
        self._num_arrivals = 0

    def enqueue(self, prompt: list[int], max_tokens: int = 20, **fields: Any) -> Choice:
        self._num_arrivals += 1
        fields = {"params": SamplingParams()} | fields
        asked = request(self._num_arrivals, prompt, max_tokens=max_tokens, **fields)
        choice = Choice(FRONTEND, asked, 0, 0, self._num_arrivals, asked.prompt_token_ids)
        self.scheduler.enqueue(choice)
        return choice

    def plan(self) -> StepPlan:
        plan = self.scheduler.plan()
        assert plan is not None
        self.pool.check([self.table.blocks[row] for row in self.table.running])
        return plan

    def read_back(self, plan: StepPlan, token: int = 30) -> None:
        """Enter a step in which each drawing row drew `token`, without drafts."""
        table = self.table
        table.num_settled[plan.host_rows] = plan.starts + plan.num_query
        drew = plan.host_rows[plan.samples]
        table.token_ids[drew, table.num_known[drew]] = token
        table.num_known[drew] += 1
        table.num_drawing[drew] -= 1
        self.prefixes.register(drew)

    def step(self) -> StepPlan:
        plan = self.plan()
        self.read_back(plan)
        return plan


def counts(plan: StepPlan) -> dict[int, int]:
    """Tokens computed by handle."""
    handles = [choice.request.handle for choice in plan.choices]
    return dict(zip(handles, plan.num_query.tolist(), strict=True))
