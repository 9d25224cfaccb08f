"""Rank 0's runner: it sends every step to the other ranks, and then runs it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from engine.arrays import Int32Array, Int64Array
from engine.contracts.adapters import AdapterReader, AdapterSource
from engine.contracts.control import MemoryPart
from engine.contracts.runner import (
    Launched,
    Result_co,
    RouteArrays,
    RunnerLostError,
    StartingRunner,
    StepHandle,
    StepResult,
)
from engine.contracts.scoring import ScoringHandle, ScoringPlan, ScoringResult
from engine.contracts.weights import AnyWeightCommand, WeightReply
from engine.errors import kind_and_line
from engine.parallel.messages import (
    DropAdapter,
    FollowWeights,
    Forget,
    GiveBack,
    Message,
    Score,
    TakeAgain,
    draw_of,
    launch_of,
)
from engine.parallel.readings import joined
from engine.plan import StepMasks, StepPlan


class OtherRanks(Protocol):
    """The ranks that rank 0 leads; `RankProcesses` are processes."""

    def send(self, message: Message) -> None:
        """Send a message to all of them, after those sent before."""
        ...

    def read(self, number: int, source: AdapterSource) -> list[Future[bytes]]:
        """Let each of them read an adapter; its digests by rank, see `RankReadings`."""
        ...

    def failure(self) -> str | None:
        """Why one of them was lost, if one was."""
        ...


class LeadRunner:
    """The `StartingRunner` of an engine over several ranks.

    Args:
        runner: of this rank.
        masks: int32 [max_masks, words], the buffer in which a step's masks lie.
        others: the other ranks.
    """

    def __init__(self, runner: StartingRunner, masks: Int32Array, others: OtherRanks) -> None:
        self._runner = runner
        self._masks = masks
        self._others = others

    @property
    def rows_by_path(self) -> dict[str, int]:
        return self._runner.rows_by_path

    def launch(self, plan: StepPlan) -> StepHandle:
        self._others.send(launch_of(plan))
        return LedStep(self._runner.launch(plan), self._masks, self._others)

    def launch_scoring(self, plan: ScoringPlan) -> ScoringHandle:
        self._others.send(Score(plan))
        return LedScoring(self._runner.launch_scoring(plan), self._others)

    def weights(self, command: AnyWeightCommand) -> WeightReply:
        self._others.send(FollowWeights(command))
        return self._runner.weights(command)

    def read_routes(self, slots: Int64Array) -> RouteArrays:
        return self._runner.read_routes(slots)  # each rank chooses alike

    def give_back(self, parts: Sequence[MemoryPart], *, keeps_weights: bool) -> None:
        self._others.send(GiveBack(list(parts), keeps_weights))
        self._runner.give_back(parts, keeps_weights=keeps_weights)

    def take_again(self, parts: Sequence[MemoryPart]) -> None:
        self._others.send(TakeAgain(list(parts)))
        self._runner.take_again(parts)

    def forget(self, rows: Int32Array) -> None:
        self._others.send(Forget(rows))
        self._runner.forget(rows)


class LeadReader:
    """The `AdapterReader` of all ranks: each reads its parts of every adapter.

    An adapter is there when all have read it, and the same files: a rank without it ends the engine
    at the first step that has it, and one of other files would draw by half of each.

    Args:
        reader: of this rank.
    """

    def __init__(self, reader: AdapterReader, others: OtherRanks) -> None:
        self._reader, self._others = reader, others

    def read(self, number: int, source: AdapterSource) -> Future[bytes]:
        others = self._others.read(number, source)
        return joined(source, [self._reader.read(number, source), *others])

    def drop(self, number: int) -> None:
        self._others.send(DropAdapter(number))
        self._reader.drop(number)


class LedStep:
    """A step of all ranks; see `StepHandle`."""

    def __init__(self, step: StepHandle, masks: Int32Array, others: OtherRanks) -> None:
        self.plan = step.plan
        self._step = step
        self._masks = masks
        self._others = others

    def draw(self, masks: StepMasks) -> None:
        self._others.send(draw_of(masks, self._masks))
        self._step.draw(masks)

    def wait(self) -> StepResult:
        return _wait(self._step, self._others)


class LedScoring:
    """A step of scoring of all ranks; see `ScoringHandle`."""

    def __init__(self, step: ScoringHandle, others: OtherRanks) -> None:
        self._step = step
        self._others = others

    @property
    def is_there(self) -> bool:
        return self._step.is_there

    def wait(self) -> ScoringResult:
        return _wait(self._step, self._others)


def _wait(step: Launched[Result_co], others: OtherRanks) -> Result_co:
    """Wait for a step. What it raises ends the engine: the other ranks wait inside that step.

    Raises:
        RunnerLostError: the step raised on this rank or another, which it names.
    """
    try:
        return step.wait()
    except RunnerLostError:
        raise
    except Exception as error:
        reason = others.failure() or f"rank 0: {kind_and_line(error)}"
        raise RunnerLostError(reason) from error
