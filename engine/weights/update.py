"""One update: tensors are received and checked, and then all written at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from engine.contracts.named_weights import NamedWeight, WeightUnit
from engine.contracts.weights import WeightUpdateError
from engine.models.weights.finite import is_finite
from engine.weights.names import NameMap, WeightPiece
from engine.weights.staging import room_on
from engine.weights.tensor_sources import ReceivedTensor, dtype_name


@dataclass(frozen=True)
class _Staged:
    """A piece of a weight that is to be written."""

    piece: WeightPiece
    name: str
    load: Callable[[], torch.Tensor]

    def values(self) -> torch.Tensor:
        return self.piece.of(self.load())


class WeightUpdate:
    """Tensors of an update that has begun; nothing is written before `write`.

    Args:
        names: of what is updated.
        device: of the weights.
        check: refuse tensors with numbers that are not finite once they are written.

    Attributes:
        num_tensors, num_bytes: received. seconds: that it took to receive and to write them.
    """

    def __init__(
        self,
        names: NameMap,
        device: torch.device,
        *,
        check: bool,
    ) -> None:
        self._names, self._device, self._check = names, device, check
        self._staged: dict[NamedWeight, list[_Staged]] = {}
        self._tied: dict[NamedWeight, _Staged] = {}
        self.num_tensors, self.num_bytes, self.seconds = 0, 0, 0.0
        self._room: int | None = None
        self._is_empty = True
        self._checks: dict[Callable[[], None], None] = {}

    def add(self, tensors: Iterable[ReceivedTensor]) -> None:
        """Check tensors, and keep them.

        Raises:
            WeightUpdateError: a name is unknown, or numbers are not finite.
            WeightError: a shape, a type, or what lays others out is another.
        """
        for tensor in tensors:
            self._is_empty = False
            if tensor.check_unchanged is not None:
                self._checks[tensor.check_unchanged] = None
            if self._names.passes_over(tensor.name):
                continue
            pieces = self._names.pieces(tensor.name, tensor.info)
            load = tensor.load if tensor.is_kept else self._kept(tensor)
            for piece in pieces:
                self._add(_Staged(piece, tensor.name, load))
            self.num_tensors += 1
            self.num_bytes += tensor.num_bytes

    def read_tied(
        self, read: Callable[[NamedWeight], torch.Tensor]
    ) -> dict[NamedWeight, torch.Tensor]:
        """The weights of which a tied head was received alone; all ranks call it alike."""
        return {weight: read(weight) for weight in self._tied if weight not in self._staged}

    def check_received(self, held: dict[NamedWeight, torch.Tensor]) -> None:
        """Refuse an update that received nothing, not even what is passed over, or another head.

        Files that were written since they were checked are refused too, as others.

        Args:
            held: of `read_tied`.
        """
        if self._is_empty:
            words = "the update has no tensors: the weights are as they were"
            raise WeightUpdateError(words, "no_tensors")
        for check_unchanged in self._checks:
            check_unchanged()
        for weight, head in self._tied.items():
            whole = held[weight] if weight in held else self._whole(weight)
            dtype = weight.unit.dtype or whole.dtype
            if not torch.equal(whole.to(dtype), head.values().to(whole.device, dtype)):
                raise _differing(weight.name, head.name)

    def _add(self, staged: _Staged) -> None:
        weight = staged.piece.weight
        unit = weight.unit
        is_scale = len(unit.tensors) > 1
        if weight.own_name in unit.fixed or weight.own_name in unit.are_numbers:
            unit.check_values(weight.own_name, staged.values())
        is_checked = (self._check or is_scale) and weight.dtype.is_floating_point
        dtype = unit.dtype or weight.dtype  # what is not rounded is held as the checkpoint has it
        if is_checked and not is_finite(staged.values().to(self._device, dtype)):
            kind = dtype_name(dtype)
            words = f"weight {staged.name!r} holds numbers that are not finite as {kind}"
            raise WeightUpdateError(words, "not_finite")
        if staged.piece.is_tied:  # the embeddings may come after it
            self._tied[weight] = staged
            return
        before = self._staged.setdefault(weight, [])
        if staged.piece.rows is None:
            for other in before:
                is_same = other.name == staged.name or torch.equal(other.values(), staged.values())
                if other.piece.rows is None and not is_same:
                    raise _differing(other.name, staged.name)
            before.clear()
        before.append(staged)

    def _kept(self, tensor: ReceivedTensor) -> Callable[[], torch.Tensor]:
        """Keep a tensor until it is written: where it is, unless a GPU has too little room."""
        values = tensor.load()
        if values.is_cuda:
            self._room = room_on(values.device) if self._room is None else self._room
            self._room -= values.nbytes
            if self._room < 0:
                values = values.cpu()
        return lambda: values

    @property
    def written(self) -> dict[str, list[slice | None]]:
        """The rows that were received of each of the model's weights; None is all of them."""
        return {
            weight.name: [each.piece.rows for each in staged]
            for weight, staged in self._staged.items()
        }

    def drop(self) -> None:
        """Let go of all that was received."""
        for kept in (self._staged, self._tied, self._checks):
            kept.clear()

    def write(self) -> None:
        """Write all that was received; what raises here leaves weights of both."""
        units: dict[WeightUnit, list[NamedWeight]] = {}
        for weight in self._staged:
            units.setdefault(weight.unit, []).append(weight)
        for unit, weights in units.items():
            unit.write({weight.own_name: self._whole(weight) for weight in weights})

    def _whole(self, weight: NamedWeight) -> torch.Tensor:
        """A weight's new numbers; rows that were not received stay as they are."""
        pieces = self._staged[weight]
        if pieces[0].piece.rows is None and len(pieces) == 1:
            return pieces[0].values()
        whole = weight.read().clone()
        for staged in pieces:
            rows = staged.piece.rows
            whole[slice(None) if rows is None else rows] = staged.values().to(whole)
        return whole


def _differing(name: str, other: str) -> WeightUpdateError:
    words = f"weights {name!r} and {other!r} are one in this model, and their numbers differ"
    return WeightUpdateError(words, "bad_source")
