"""Which steps were launched and not read back: one in flight, and perhaps one ahead of it.

    plan → launch → (draw, where masks are awaited) → in flight → read back

The step in flight is read back when the next one was launched. A step that awaits masks is drawn
only then, since its masks follow from the tokens read back; the step after it is launched ahead,
right after that draw, so that the device waits for neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from engine.contracts.runner import Runner, StepFailedError, StepHandle, StepResult, result_of
from engine.plan import StepMasks, StepPlan
from engine.planning.pace import Pace
from engine.planning.settle import Settled, settle
from engine.rows import RowTable
from engine.structured.grammars import Failures, Grammars


class EnteredStep(NamedTuple):
    """A step that was read back, and the choices that cannot follow their grammars any longer."""

    plan: StepPlan
    result: StepResult
    settled: Settled
    failures: Failures


class StepPipeline:
    """Launches steps in the order of their plans, and reads them back in the same order."""

    def __init__(
        self,
        runner: Runner,
        table: RowTable,
        pace: Pace,
        grammars: Grammars | None,
        on_failure: Callable[[StepPlan, str], None],
    ) -> None:
        """`on_failure` is called with the plan of a step that raised, and with what it raised."""
        self._runner = runner
        self._table = table
        self._pace = pace
        self._grammars = grammars
        self._on_failure = on_failure
        self._in_flight: StepHandle | None = None
        self._launched: deque[StepHandle] = deque()  # after it

    @property
    def is_empty(self) -> bool:
        """Whether nothing was launched that was not read back."""
        return self._in_flight is None and not self._launched

    @property
    def is_ahead(self) -> bool:
        """Whether the next step was launched already."""
        return bool(self._launched)

    @property
    def awaiting_draw(self) -> StepPlan | None:
        """The plan of the next step, if it was launched without its draw."""
        if self._launched and self._launched[0].plan.awaits_masks:
            return self._launched[0].plan
        return None

    def launch(self, plan: StepPlan) -> None:
        """Launch a step after those before it."""
        self._pace.launched()
        self._launched.append(self._runner.launch(plan))

    def draw(self, masks: StepMasks) -> None:
        """Issue the draw of the step that awaits it."""
        self._launched[0].draw(masks)

    def enter(self, *, alone: bool) -> EnteredStep | None:
        """Wait for the step in flight, and enter its tokens into rows and matchers.

        Args:
            alone: as for `Pace.read_back`.

        Returns:
            None where none is in flight, or where it raised.

        Raises:
            RunnerLostError: no later step can run either.
        """
        if self._in_flight is None:
            return None
        plan = self._in_flight.plan
        try:
            result = result_of(self._in_flight)
        except StepFailedError as failure:
            self._on_failure(plan, str(failure))
            return None
        finally:
            self._pace.read_back(plan.num_prefilled, alone=alone)
        settled = settle(self._table, plan, result)
        failures: Failures = []
        if self._grammars is not None:
            failures = self._grammars.enter(self._table, plan, result, settled)
        return EnteredStep(plan, result, settled, failures)

    def advance(self) -> None:
        """Let the next step be the one in flight."""
        self._in_flight = self._launched.popleft() if self._launched else None
