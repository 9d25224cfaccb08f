"""Reads several modules of the checkpoint as one product, and notes where each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from engine.contracts.named_weights import ProductRows, TensorInfo
from engine.models.formats.held_modules import HeldModule, WeightNotes, outputs_of
from engine.models.formats.modules import ModuleShape, PlainModules
from engine.models.formats.part import Part, WeightProduct
from engine.models.weights.shares import OwnedPart, RankShare


class Projection(NamedTuple):
    """A module of the checkpoint, whose outputs are some of a product's.

    Attributes:
        name: of the module. outputs: the rank's shares of them, in order.
        order: int64, the rank's outputs in the order that the product has them in; None as read.
    """

    name: str
    outputs: tuple[RankShare, ...]
    has_bias: bool = False
    order: torch.Tensor | None = None

    @property
    def num_channels(self) -> int:
        """Number of the rank's outputs."""
        return sum(share.length for share in self.outputs)

    def module(self, inputs: RankShare) -> ModuleShape:
        """The part of the module's weight that the rank has."""
        own = OwnedPart.of(1, (inputs,)) or OwnedPart.of(0, self.outputs)
        return ModuleShape(self.name, self.num_channels, inputs.length, own)


class ProjectionReader:
    """Reads products of projections.

    Args:
        modules: how modules' weights are stored.
        notes: of where what is read is held.
        rank: this one's number.
    """

    def __init__(self, modules: PlainModules, notes: WeightNotes, rank: int) -> None:
        self._modules, self._notes, self._rank = modules, notes, rank

    def read(self, projections: Sequence[Projection], inputs: RankShare) -> WeightProduct:
        """Read projections of the same input as one product; see `WeightReader.product`."""
        modules = [projection.module(inputs) for projection in projections]
        part = self._modules.fused(modules)
        tensors = self._notes.registry.take()
        bias, biases = self._bias(projections, modules)
        if any(projection.order is not None for projection in projections):
            order = self._order(projections)
            part, bias = part.channels(order), None if bias is None else bias[order]
        product = part.product(bias, self._modules.dtype, invariant=self._modules.invariant)
        start = 0
        for projection, module, asked in zip(projections, modules, biases, strict=True):
            rows = slice(start, start + module.num_channels)
            start = rows.stop
            own = {n: i for n, i in tensors.items() if n.rpartition(".")[0] == module.name}
            own_order = (
                None if projection.order is None else projection.order.to(self._modules.device)
            )
            self._note_module(own, product, rows, module, own_order)
            if asked:
                self._note_bias(asked, bias, rows, module, own_order)
        return product

    def _note_module(
        self,
        tensors: dict[str, TensorInfo],
        product: WeightProduct,
        rows: slice,
        module: ModuleShape,
        order: torch.Tensor | None,
    ) -> None:
        """Note where one module of a product is."""

        def read(modules: PlainModules) -> Part:
            part = modules.part(module)
            return part if order is None else part.channels(order)

        def put(new: Part) -> None:
            whole = product.part()
            whole.channels(rows).copy_(new)
            product.refresh(whole)

        outputs = outputs_of(module, order)
        held = HeldModule(module, read, lambda: product.part().channels(rows), put, outputs=outputs)
        inputs = module.own.indices() if module.own is not None and module.own.dim == 1 else None
        self._notes.module(tensors, held, ProductRows(product, rows, outputs, inputs))

    def _bias(
        self, projections: Sequence[Projection], modules: Sequence[ModuleShape]
    ) -> tuple[torch.Tensor | None, list[dict[str, TensorInfo]]]:
        """The biases of projections as one, zeros where one has none; None where none has any.

        Returns:
            Besides, the tensors of each projection that were read.
        """
        biases, asked = [], []
        for projection, module in zip(projections, modules, strict=True):
            bias = self._modules.bias(module, has_bias=projection.has_bias)
            is_of_sum = module.own is not None and module.own.dim == 1
            if bias is not None and is_of_sum and self._rank > 0:
                bias.zero_()  # one rank adds it
            biases.append(bias)
            asked.append(self._notes.registry.take())
        if all(bias is None for bias in biases):
            return None, asked
        pieces = [
            torch.zeros(module.num_channels, dtype=self._modules.dtype, device=self._modules.device)
            if bias is None
            else bias
            for bias, module in zip(biases, modules, strict=True)
        ]
        return torch.cat(pieces), asked

    def _note_bias(
        self,
        tensors: dict[str, TensorInfo],
        bias: torch.Tensor | None,
        rows: slice,
        module: ModuleShape,
        order: torch.Tensor | None,
    ) -> None:
        """Note where the bias of one module of a product is."""
        if bias is None:  # zeros, which the product leaves out
            self._notes.registry.hold(tensors)
            return
        self._notes.bias(tensors, bias[rows], module, order, self._rank)

    def _order(self, projections: Sequence[Projection]) -> torch.Tensor:
        """The orders of all projections' outputs, one after the other."""
        orders, start = [], 0
        for projection in projections:
            order = projection.order
            if order is None:
                order = torch.arange(projection.num_channels)
            orders.append(order + start)
            start += projection.num_channels
        return torch.cat(orders).to(self._modules.device)
