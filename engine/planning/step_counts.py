"""Counts of the steps that were read back. No torch."""

from __future__ import annotations

from engine.messages.step_output import Finish
from engine.plan import StepPlan
from engine.planning.settle import Settled


class StepCounts:
    """Counts since the engine started, as `EngineStats` has them."""

    def __init__(self) -> None:
        self.num_steps = self.failed_steps = 0
        self.prompt_tokens_computed = self.nan_rows = self.empty_rows = 0

    def add(self, plan: StepPlan, settled: Settled) -> None:
        """Count a step whose tokens were entered."""
        self.num_steps += 1
        self.prompt_tokens_computed += plan.num_prompt_tokens
        if settled.finish.any():
            self.nan_rows += int((settled.finish == Finish.NAN).sum())
            self.empty_rows += int((settled.finish == Finish.EMPTY).sum())
