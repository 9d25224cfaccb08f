"""Notes where the modules that a reader reads are held, so that they can be written in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from engine.contracts.named_weights import Portion, ProductRows, TensorInfo
from engine.models.formats.expert_stack import ExpertStack
from engine.models.formats.modules import ModuleShape, PackedExperts, PlainModules
from engine.models.formats.part import Part, PartPlaces, as_bytes
from engine.models.weights.registry import WeightRegistry
from engine.models.weights.shares import OwnedPart
from engine.models.weights.stored import WeightSource, fill


class HeldModule:
    """A module's weight, as a part of something larger that a model multiplies by.

    Args:
        read: reads the module as the rank holds it, once more.
        part: what holds it now. put: writes it there.
        outputs: int64, the whole module's output of each channel; None is all, in order.
        inputs: int64, the same of columns; None is those of the rank, in order.
    """

    def __init__(
        self,
        shape: ModuleShape,
        read: Callable[[PlainModules], Part],
        part: Callable[[], Part],
        put: Callable[[Part], None],
        *,
        outputs: torch.Tensor | None = None,
        inputs: torch.Tensor | None = None,
    ) -> None:
        self.shape, self.read, self.part, self.put = shape, read, part, put
        self._outputs, self._inputs = outputs, inputs

    def places(self, groups: torch.Tensor) -> PartPlaces:
        """Where its numbers are in the whole module."""
        return places_of(self.shape, self._outputs, self._inputs, groups)


def places_of(
    shape: ModuleShape,
    outputs: torch.Tensor | None,
    inputs: torch.Tensor | None,
    groups: torch.Tensor,
) -> PartPlaces:
    """Where a rank's part of a module is in the whole; arguments as of `HeldModule`."""
    own, whole = shape.own, shape.whole
    if inputs is None:
        is_divided = own is not None and own.dim == 1
        inputs = own.indices() if own is not None and is_divided else torch.arange(whole[1])
    return PartPlaces(whole, None if outputs is None else outputs.cpu(), inputs.cpu(), groups)


def outputs_of(shape: ModuleShape, order: torch.Tensor | None = None) -> torch.Tensor | None:
    """The whole module's output of each of a rank's channels, int64; None is all, in order.

    Args:
        order: of the rank's outputs, in which they lie.
    """
    own = shape.own
    of_rank = own.indices() if own is not None and own.dim == 0 else None
    if order is None or of_rank is None:
        return of_rank if order is None else order.cpu()
    return of_rank[order.cpu()]


class WeightNotes:
    """Notes units in a registry as the modules of a reader are read."""

    def __init__(self, registry: WeightRegistry, modules: PlainModules) -> None:
        self.registry, self._modules = registry, modules

    def tensor(
        self, target: torch.Tensor, own: OwnedPart | None, *, base: torch.Tensor | None = None
    ) -> None:
        """Note the tensor that was read just now, which `target` holds as it is, or a part of it.

        Args:
            base: what is derived from, where `target` is a part of it.
        """
        tensors = self.registry.take()
        if not self.registry.is_kept:
            return
        ((name, info),) = tensors.items()

        def get() -> Mapping[str, Portion]:
            return {name: Portion(target, info.shape, _places(own))}

        base = target if base is None else base
        self.registry.note(
            tensors,
            lambda new: fill(new, target, name, own),
            get,
            lambda: [target],
            base=base,
            dtype=target.dtype,
        )

    def module(
        self,
        tensors: Mapping[str, TensorInfo],
        held: HeldModule,
        rows: ProductRows | None = None,
    ) -> None:
        """Note a module of which `tensors` were read."""
        if not self.registry.is_kept:
            return
        modules = self._modules
        storing = modules.storing(held.shape, tensors)
        self.registry.take()

        def put(source: WeightSource) -> None:
            held.put(held.read(modules.over(source)))

        def get() -> Mapping[str, Portion]:
            return modules.held(held.part()).portions(held.places(storing.groups()))

        dtype = self._dtype(tensors)
        written = partial(_tensors, lambda: [held.part()])
        self.registry.note(tensors, put, get, written, store=storing.store, rows=rows, dtype=dtype)

    def expert(
        self,
        shape: ModuleShape,
        stack: ExpertStack,
        expert: int,
        start: int,
        *,
        outputs: torch.Tensor | None = None,
        by_groups: torch.Tensor | None = None,
        is_by_groups: bool = False,
    ) -> None:
        """Note a module that was read just now as channels of an expert from `start` on.

        Args:
            outputs: int64, those of the whole module; None is all, or a rank's.
            by_groups: int64, the inputs of the columns, where the module was read by groups of
                them (`is_by_groups`); None is in order.
        """

        def read(modules: PlainModules) -> Part:
            return (
                modules.part_by_groups(shape)[0] if is_by_groups else modules.part(shape, outputs)
            )

        held = HeldModule(
            shape,
            read,
            lambda: stack.part(expert, start, shape.num_channels),
            lambda new: stack.part(expert, start, shape.num_channels).copy_(new),
            outputs=outputs_of(shape) if outputs is None else outputs,
            inputs=by_groups,
        )
        self.module(self.registry.take(), held)

    def packed_experts(
        self, experts: PackedExperts, stack: ExpertStack, *, is_joined: bool = False
    ) -> None:
        """Note the tensors of all experts that were read just now.

        Args:
            is_joined: by `expert_parts`, and not `packed_parts`.
        """
        tensors = self.registry.take()
        if not self.registry.is_kept:
            return
        modules, shape = self._modules, experts.expert
        storing = modules.storing_experts(experts, tensors, is_transposed=is_joined)

        def parts() -> list[Part]:
            return [
                stack.part(index, 0, shape.num_channels) for index in range(experts.num_experts)
            ]

        def put(source: WeightSource) -> None:
            given = modules.over(source)
            new = given.expert_parts(experts) if is_joined else given.packed_parts(experts)
            for own, part in zip(parts(), new, strict=True):
                own.copy_(part)

        def get() -> Mapping[str, Portion]:
            outputs = outputs_of(shape, experts.order)
            places = places_of(shape, outputs, None, storing.groups())
            own = [modules.held(part).portions(places) for part in parts()]
            return {name: _stacked([each[name] for each in own]) for name in own[0]}

        dtype, written = self._dtype(tensors), partial(_tensors, parts)
        unit = self.registry.note(tensors, put, get, written, store=storing.store, dtype=dtype)
        unit.are_numbers = storing.are_numbers

    def bias(
        self,
        tensors: Mapping[str, TensorInfo],
        target: torch.Tensor,
        shape: ModuleShape,
        order: torch.Tensor | None,
        rank: int,
    ) -> None:
        """Note the bias of a module; of a sum over ranks, one rank adds it."""
        ((name, info),) = tensors.items()
        modules = self._modules
        is_of_sum = shape.own is not None and shape.own.dim == 1

        def put(source: WeightSource) -> None:
            new = modules.over(source).bias(shape, has_bias=True)
            assert new is not None
            if is_of_sum and rank > 0:
                new.zero_()
            target.copy_(new if order is None else new[order])

        def get() -> Mapping[str, Portion]:
            return {name: Portion(target, info.shape, (outputs_of(shape, order),))}

        self.registry.note(tensors, put, get, lambda: [target], dtype=target.dtype)

    def dense(
        self,
        shape: ModuleShape,
        get: Callable[[], torch.Tensor],
        put: Callable[[torch.Tensor], object],
        *,
        base: torch.Tensor | None = None,
    ) -> None:
        """Note a module that was read just now and is held in the model's dtype.

        Of a quantized one the tensors are kept on the host, since its numbers do not give them.
        """
        tensors, modules = self.registry.take(), self._modules
        if not self.registry.is_kept:
            return
        kept: dict[str, torch.Tensor] = {}
        checkpoint = modules.source.checkpoint
        if len(tensors) > 1 and checkpoint is not None:
            kept = {name: checkpoint.stored(name).cpu() for name in tensors}
            self.registry.take()

        def write(source: WeightSource) -> None:
            put(modules.over(source).unquantized(shape))
            for name, tensor in kept.items():
                assert source.checkpoint is not None
                tensor.copy_(source.checkpoint.stored(name))

        def read() -> Mapping[str, Portion]:
            if kept:
                return {name: Portion(tensor, tensor.shape) for name, tensor in kept.items()}
            (name,) = tensors
            return {name: Portion(get(), shape.whole, (outputs_of(shape),))}

        dtype = self._dtype(tensors)
        self.registry.note(tensors, write, read, lambda: [get()], base=base, dtype=dtype)

    def _dtype(self, tensors: Mapping[str, TensorInfo]) -> torch.dtype | None:
        """What modules of one tensor are read in; those of several are quantized."""
        return self._modules.dtype if len(tensors) == 1 else None


def _tensors(parts: Callable[[], Sequence[Part]]) -> list[torch.Tensor]:
    """The tensors of parts, in which they are written."""
    return [tensor for part in parts() for tensor in part.tensors]


def _stacked(portions: Sequence[Portion]) -> Portion:
    """The portions of all experts as one."""
    first = portions[0]
    values = torch.stack([_stackable(portion.values) for portion in portions])
    shape = (len(portions), *first.shape)
    return Portion(values.view(first.values.dtype), shape, (None, *first.places))


def _stackable(values: torch.Tensor) -> torch.Tensor:
    return as_bytes(values) if values.dtype.itemsize == 1 else values


def _places(own: OwnedPart | None) -> tuple[torch.Tensor | None, ...]:
    return () if own is None else (*[None] * own.dim, own.indices())
