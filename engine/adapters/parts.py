"""The modules of products as their adapters have them: what a rank has of each, in what order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from engine.adapters.targets import JOINED
from engine.models.weights.shares import OwnedPart, RankShare


class ProductModule(Protocol):
    """A module of a product, as `Projection` is."""

    @property
    def name(self) -> str: ...

    @property
    def outputs(self) -> tuple[RankShare, ...]: ...

    @property
    def order(self) -> torch.Tensor | None: ...


class ExpertModules(NamedTuple):
    """The modules of a layer's experts, and the tensors that may hold all of them.

    Attributes:
        name: of the module that holds the experts.
        first: names of an expert's products of its input. last: of the one back.
        tensors: names of the tensors of all experts that make up `first` and `last`.
        inner, width: sizes of an expert.
        is_interleaved: the outputs of `first` are in turn in their tensor.
        orders: int64 an expert, the inner columns that the rank has, in order; None is in order.
    """

    name: str
    first: Sequence[str]
    last: str
    tensors: tuple[str, str]
    num_experts: int
    inner: RankShare
    width: int
    is_interleaved: bool
    orders: Sequence[torch.Tensor | None]

    @property
    def names(self) -> list[str]:
        """All names by which adapters may know them."""
        parts = [f"{self.name}.{part}" for part in (*self.first, self.last)]
        return [self.name, *parts, *(f"{self.name}.{tensor}" for tensor in self.tensors)]


class ModulePart(NamedTuple):
    """A module, or a part of one that a checkpoint joins.

    Attributes:
        rows: int64, of its outputs the rank's, in the product's order; None is all.
        width: number of these. whole: number of all outputs.
    """

    name: str
    rows: torch.Tensor | None
    width: int
    whole: int


def whole_of(module: ProductModule) -> ModulePart:
    """All of a module."""
    rows, order = indices(0, module.outputs), module.order
    if order is not None:
        rows = order if rows is None else rows[order]
    width = sum(share.length for share in module.outputs)
    return ModulePart(module.name, rows, width, sum(share.whole for share in module.outputs))


def parts_of(module: ProductModule) -> list[ModulePart]:
    """The parts of a module that checkpoints join, where the product has one after the other."""
    head, _, last = module.name.rpartition(".")
    names, whole = JOINED.get(last, ()), whole_of(module)
    if len(names) != len(module.outputs):
        return [whole]
    rows = torch.arange(whole.whole) if whole.rows is None else whole.rows
    parts, start = [], 0
    pieces = torch.split(rows, [share.length for share in module.outputs])
    for name, share, piece in zip(names, module.outputs, pieces, strict=True):
        own = piece - start
        if not ((own >= 0) & (own < share.whole)).all():
            return [whole]
        parts.append(ModulePart(f"{head}.{name}", own, share.length, share.whole))
        start += share.whole
    return parts


def joined_rows(
    columns: torch.Tensor | None, count: int, whole: int, is_interleaved: bool
) -> torch.Tensor | None:
    """The rows of a tensor of several products' outputs, of which some columns are the rank's."""
    if columns is None:
        if not is_interleaved:
            return None
        columns = torch.arange(whole)
    scale, step = (count, 1) if is_interleaved else (1, whole)
    return torch.cat([columns * scale + index * step for index in range(count)])


def indices(dim: int, shares: tuple[RankShare, ...]) -> torch.Tensor | None:
    """What a rank has of a dimension; None is all."""
    own = OwnedPart.of(dim, shares)
    return None if own is None else own.indices()
