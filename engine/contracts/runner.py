"""What the engine asks of whatever runs its steps, and the results of steps. No torch."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from engine.arrays import (
    Float32Array,
    Int32Array,
    Int64Array,
    LogprobArrays,
    RouteIds,
    UInt8Array,
)
from engine.contracts.control import MemoryPart
from engine.contracts.scoring import ScoringRunner
from engine.contracts.weights import AnyWeightCommand, WeightReply
from engine.errors import kind_and_line
from engine.plan import StepMasks, StepPlan


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


class RouteArrays(NamedTuple):
    """The experts of T tokens: ids and weights [T, L, k], as in `ChoiceRoutes`."""

    ids: RouteIds
    weights: Float32Array


class StepCosts(NamedTuple):
    """Measured times of decode steps.

    Attributes:
        sizes: numbers of rows, ascending.
        seconds: of a step of as many rows, by the drafts that it verifies and makes; 0 among them.
    """

    sizes: tuple[int, ...]
    seconds: dict[int, tuple[float, ...]]

    def of(self, num_drafts: int, num_rows: int) -> float:
        """The seconds of a step of so many rows, by the size that they are padded to."""
        i = min(bisect.bisect_left(self.sizes, num_rows), len(self.sizes) - 1)
        return self.seconds[num_drafts][i]


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
    """Wait for the result of a launched step, and tell its own failure from the runner's.

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

    def read_routes(self, slots: Int64Array) -> RouteArrays:
        """Wait for the experts of tokens, by the slots of their keys int64 [T].

        Only of a model that was started to return them.
        """
        ...

    def give_back(self, parts: Sequence[MemoryPart], *, keeps_weights: bool) -> None:
        """Give parts of the memory of all ranks back, while no step is in flight.

        Args:
            keeps_weights: weights are copied to the host; else they are let go.

        Raises:
            ControlError: this engine's memory cannot be given back ("no_sleep"), or the host of a
                rank has no room for copies ("no_memory"); all are as they were.
        """
        ...

    def take_again(self, parts: Sequence[MemoryPart]) -> None:
        """Take parts of the memory again that were given back, on all ranks.

        Raises:
            ControlError: "no_memory" on one of them; all are as they were.
        """
        ...


class StartingRunner(Runner, Protocol):
    """A runner that may run steps of the start's own, before an engine serves with it."""

    def forget(self, rows: Int32Array) -> None:
        """Vacate rows [n] at once instead of with the next plan, and count none as drawn.

        All steps have been waited for.
        """
        ...
