"""Follows the commands that read and change the weights of one rank's model and drafter."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from engine.contracts.checksums import checksum
from engine.contracts.named_weights import NamedWeight, NamedWeights
from engine.contracts.runner import RunnerLostError
from engine.contracts.weights import (
    AbandonUpdate,
    AnySource,
    AnyWeightCommand,
    BeginUpdate,
    EndGroup,
    FinishUpdate,
    InitGroup,
    LetWeightsGo,
    ListWeights,
    PassTensors,
    ReadWeight,
    ReceiveTensors,
    SetVersion,
    UpdateReport,
    WeightEntry,
    WeightList,
    WeightReply,
    WeightTarget,
    WeightUpdateError,
    WeightValues,
)
from engine.weights.agreement import agreed
from engine.weights.groups import WeightGroups
from engine.weights.incoming import IncomingTensors
from engine.weights.lacking import LackingWeights
from engine.weights.names import NameMap
from engine.weights.reading import read_together
from engine.weights.tensor_sources import dtype_name
from engine.weights.update import WeightUpdate
from sampling.device.ranks import RankExchange

Result = TypeVar("Result")


class RankWeights:
    """The weights of this rank. All ranks run the same commands in the same order.

    Args:
        model, draft: weights of both. A drafter's that are of the model's checkpoint are updated
            with the model's.
    """

    def __init__(
        self,
        model: NamedWeights,
        draft: NamedWeights,
        device: torch.device,
        exchange: RankExchange,
    ) -> None:
        self._weights: dict[WeightTarget, NamedWeights] = {"model": model, "draft": draft}
        is_of_model = all(map(model.passes_over, draft))
        joint = {**draft, **model} if is_of_model else model
        self._updated = {"model": NamedWeights(joint, model.passes_over), "draft": draft}
        self._drafter_in = {"model": draft.keys() if is_of_model else set(), "draft": draft.keys()}
        self._device, self._exchange = device, exchange
        self._groups = WeightGroups(device, exchange)
        self._update: WeightUpdate | None = None
        self._begin_command = BeginUpdate()  # of the update, or of the last one
        self._lacking = LackingWeights(NamedWeights())

    def run(self, command: AnyWeightCommand) -> WeightReply:
        """Follow a command, while no step is in flight.

        Raises:
            WeightUpdateError: on all ranks; the weights are as they were. Of tensors, or an end
                without any, it ends the update.
            RunnerLostError: some weights were written and others not.
        """
        match command:
            case BeginUpdate():
                self._agreed(lambda: self._begin(command))
            case ReceiveTensors():
                self._receive(command)
            case PassTensors():
                self._incoming(command.source).pass_over()
            case FinishUpdate():
                return self._finish(command)
            case AbandonUpdate():
                self._drop()
            case InitGroup():
                if command.forms_as == "vllm":
                    self._drop()  # of a trainer that is gone
                self._agreed(lambda: self._groups.form(command))
            case EndGroup():
                self._agreed(lambda: self._groups.end(command.name))
            case ListWeights():
                return self._list(command)
            case ReadWeight():
                return self._read(command)
            case LetWeightsGo():
                self._lacking = LackingWeights(self._weights["model"])
            case SetVersion():
                pass  # the engine's own
        return None

    def _agreed(self, work: Callable[[], object]) -> None:
        agreed(work, self._exchange)

    def _begin(self, command: BeginUpdate) -> None:
        if self._update is not None:
            raise WeightUpdateError(
                "an update is in progress: finish it first", "update_in_progress"
            )
        if not self._weights[command.target]:
            raise WeightUpdateError("there is no drafter with weights", "unknown_weight")
        named = self._updated[command.target]
        self._update = WeightUpdate(NameMap(named), self._device, check=command.check)
        self._begin_command = command

    def _begun(self) -> WeightUpdate:
        if self._update is None:
            raise WeightUpdateError("no update was begun", "no_update")
        return self._update

    def _receive(self, command: ReceiveTensors) -> None:
        start = time.perf_counter()
        tensors = self._incoming(command.source)
        if command.is_part and self._update is not None and not self._begin_command.takes_parts:
            tensors.pass_over()
            words = "an update in the middle of another: finish that first"
            raise WeightUpdateError(words, "update_in_progress")
        try:
            self._agreed(lambda: self._begun().add(tensors))
        except WeightUpdateError:
            self._drop()
            tensors.pass_over()
            self._release()
            raise
        self._begun().seconds += time.perf_counter() - start

    def _incoming(self, source: AnySource) -> IncomingTensors:
        return IncomingTensors(source, self._groups, self._device, self._exchange)

    def _finish(self, command: FinishUpdate) -> UpdateReport:
        update = agreed(self._begun, self._exchange)
        if command.of_parts != self._begin_command.takes_parts:
            words = "the update in progress is of another kind: finish it as it was begun"
            raise WeightUpdateError(words, "no_update")
        try:
            held = update.read_tied(lambda weight: self._read_as(weight, lambda whole: whole))
            self._agreed(partial(update.check_received, held))
        except WeightUpdateError:
            self._drop()
            raise
        start, target = time.perf_counter(), self._begin_command.target
        try:
            self._agreed(partial(self._write, update))
        except WeightUpdateError as error:
            raise RunnerLostError(f"weights were written in part: {error}") from error
        if target == "model":  # a drafter's may have the same names
            self._lacking.note_written(update.written)
        report = UpdateReport(
            num_tensors=update.num_tensors,
            num_weights=len(update.written),
            num_lacking=len(self._lacking),
            num_bytes=update.num_bytes,
            has_draft=not self._drafter_in[target].isdisjoint(update.written),
            seconds=update.seconds + time.perf_counter() - start,
        )
        self._drop()
        return report

    @torch.no_grad()
    def _write(self, update: WeightUpdate) -> None:
        """Write an update; who is told that all ranks did may write to its files again."""
        update.write()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _drop(self) -> None:
        """End the update, if any, and give back the memory of its tensors.

        The frames of a refusal may hold the update itself until garbage is looked for.
        """
        if self._update is not None:
            self._update.drop()
        self._update = None
        self._release()

    def _release(self) -> None:
        """Give memory back that torch keeps for later: a trainer may be on the same GPU."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.no_grad()
    def _list(self, command: ListWeights) -> WeightList:
        entries = [
            WeightEntry(
                name=name,
                shape=weight.shape,
                dtype=dtype_name(weight.dtype),
                checksum=self._read_as(weight, checksum) if command.checksums else None,
            )
            for name, weight in sorted(self._weights[command.target].items())
        ]
        return WeightList(weights=tuple(entries))

    @torch.no_grad()
    def _read(self, command: ReadWeight) -> WeightValues:
        named = {**self._weights["draft"], **self._weights["model"]}
        if command.name not in named:
            raise WeightUpdateError(f"the model has no weight {command.name!r}", "unknown_weight")
        weight = named[command.name]

        def first_rows(whole: torch.Tensor) -> tuple[float, ...]:
            rows = whole[: command.truncate] if weight.shape else whole
            return tuple(rows.double().flatten().tolist())

        return WeightValues(
            name=command.name,
            shape=weight.shape,
            dtype=dtype_name(weight.dtype),
            values=self._read_as(weight, first_rows),
        )

    def _read_as(self, weight: NamedWeight, use: Callable[[torch.Tensor], Result]) -> Result:
        return read_together(weight, self._exchange, use)
