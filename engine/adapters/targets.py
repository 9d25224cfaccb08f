"""The base's modules that adapters may change: those that a product multiplies by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from engine.adapters.config import MERGE
from engine.adapters.folder import AdapterTensors, Factors
from engine.errors import AdapterError
from engine.models.weights.shares import OwnedPart, RankShare

IN_LAYER = re.compile(r"(?:^|\.)((?:layers|h|blocks)\.\d+\..+)$")
"""The end of a module's name that is the same in all spellings of a model's beginning."""
JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Names of modules that some trainers join, and of those that make them up, in order."""


class AdapterTarget(NamedTuple):
    """A module, and what a rank has of it.

    Attributes:
        product: that multiplies by it, an index. module: its index among the product's modules.
        first: the first of its outputs among the rank's of the product.
        outputs, inputs: the rank's parts of the module's; None is all of them.
        order: the rank's outputs in the order that the product has them in; None as in the module.
        shape: of its whole weight, [out, in].
    """

    name: str
    product: int
    module: int
    first: int
    outputs: OwnedPart | None
    inputs: OwnedPart | None
    order: torch.Tensor | None
    shape: tuple[int, int]

    @classmethod
    def of(
        cls,
        name: str,
        place: tuple[int, int, int],
        outputs: tuple[RankShare, ...],
        inputs: RankShare,
        order: torch.Tensor | None,
    ) -> AdapterTarget:
        """The target of a module; `place` is its product, module and first output."""
        shape = sum(share.whole for share in outputs), inputs.whole
        own = OwnedPart.of(0, outputs), OwnedPart.of(1, (inputs,))
        return cls(name, *place, *own, order, shape)

    def own(self, factors: Factors) -> Factors:
        """The rank's parts of A and B."""
        a, b = factors.a, factors.b
        if self.inputs is not None:
            a = self.inputs.of_whole(a)
        if self.outputs is not None:
            b = self.outputs.of_whole(b)
        return Factors(a, b if self.order is None else b[self.order], factors.scale)


def fit(
    adapter: AdapterTensors, targets: Mapping[str, AdapterTarget]
) -> list[tuple[AdapterTarget, Factors]]:
    """Find the targets of an adapter's modules, those of joined modules apart.

    Raises:
        AdapterError: a module is not of the base, or has another shape there.
    """
    by_end = {
        match[1]: target for target in targets.values() if (match := IN_LAYER.search(target.name))
    }

    def find(module: str) -> AdapterTarget | None:
        match = IN_LAYER.search(module)
        return targets.get(module) or (by_end.get(match[1]) if match else None)

    found = []
    for module, factors in adapter.modules.items():
        if (target := find(module)) is not None:
            _check_shape(adapter, module, factors, target.shape)
            found.append((target, factors))
            continue
        head, _, last = module.rpartition(".")
        parts = [find(f"{head}.{part}") for part in JOINED.get(last, ())]
        if not parts or None in parts:
            raise AdapterError(
                f"{adapter.folder}: the base has no module {module!r} that adapters may change; "
                f"they are {_ends(targets)}. Give an adapter of this base, or {MERGE}"
            )
        found += _apart(adapter, module, factors, [part for part in parts if part is not None])
    return found


def _apart(
    adapter: AdapterTensors, module: str, factors: Factors, parts: list[AdapterTarget]
) -> list[tuple[AdapterTarget, Factors]]:
    """The factors of modules that a trainer has joined: A is the same for all of them."""
    sizes = [part.shape[0] for part in parts]
    _check_shape(adapter, module, factors, (sum(sizes), parts[0].shape[1]))
    pieces = torch.split(factors.b, sizes)
    return [(part, factors._replace(b=b)) for part, b in zip(parts, pieces, strict=True)]


def _check_shape(
    adapter: AdapterTensors, module: str, factors: Factors, shape: tuple[int, int]
) -> None:
    own = factors.b.shape[0], factors.a.shape[1]
    if own != shape:
        raise AdapterError(
            f"{adapter.folder}: the adapter of {module!r} is of a weight {list(own)}, and the "
            f"base's is {list(shape)}; give an adapter of this base"
        )


def _ends(targets: Iterable[str]) -> str:
    """The last parts of modules' names, each once."""
    return ", ".join(dict.fromkeys(target.rpartition(".")[2] for target in targets))
