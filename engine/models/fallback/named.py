"""The weights of a transformers module by their names in the checkpoint.

transformers renames tensors as it loads them, and joins some (those of experts). What it does to
save them again, `revert_weight_conversion`, says which names a module's tensor has in files, and,
asked about a tensor of indices, where each file's numbers lie in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers.core_model_loading import revert_weight_conversion

from engine.contracts.named_weights import (
    NamedWeight,
    NamedWeights,
    Portion,
    TensorInfo,
    WeightUnit,
)
from engine.models.weights.stored import Unread

Types = Mapping[str, torch.dtype]
"""The types of a checkpoint's tensors, by their names."""


def module_weights(
    module: Any, stored: Types | None, followers: Mapping[int, Callable[[], None]]
) -> NamedWeights:
    """The weights of a module, whose tensors stay where they are.

    Args:
        stored: of the checkpoint; None where there is none.
        followers: what is to be computed anew after a write of the tensor at an address.
    """
    named: dict[str, NamedWeight] = {}
    seen: set[int] = set()
    for key, tensor in module.state_dict().items():
        held = _HeldTensor(module, key, tensor, stored)
        infos = held.infos()
        if infos is None or tensor.data_ptr() in seen:
            continue  # another name of a tensor that is shared
        seen.add(tensor.data_ptr())
        unit = WeightUnit(infos, held.put, held.get, held.written, dtype=tensor.dtype)
        if tensor.data_ptr() in followers:
            unit.followers.append(followers[tensor.data_ptr()])
        named |= {name: NamedWeight(name, unit, name) for name in infos}
    unread = Unread(frozenset(stored or ()) - named.keys())
    return NamedWeights(named, unread.has)


class _HeldTensor:
    """A tensor of a module, of which a checkpoint has one or several."""

    def __init__(self, module: Any, key: str, tensor: torch.Tensor, stored: Types | None) -> None:
        self._module, self._key, self._tensor, self._stored = module, key, tensor, stored

    def infos(self) -> dict[str, TensorInfo] | None:
        """What the checkpoint has of it; None where it has not all of it."""
        parts, stored = self._parts(self._tensor.to("meta")), self._stored
        if stored is not None and not parts.keys() <= stored.keys():
            return None
        return {
            name: TensorInfo(tuple(part.shape), part.dtype if stored is None else stored[name])
            for name, part in parts.items()
        }

    def put(self, given: Mapping[str, torch.Tensor]) -> None:
        tensor = self._tensor
        places = torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape)
        flat = tensor.view(-1)
        for name, index in self._parts(places).items():
            # What is not new may be part of the tensor itself.
            flat[index.flatten()] = given[name].to(flat).flatten().clone()

    def get(self) -> Mapping[str, Portion]:
        parts = self._parts(self._tensor).items()
        return {name: Portion(part, tuple(part.shape)) for name, part in parts}

    def written(self) -> list[torch.Tensor]:
        return [self._tensor]

    def _parts(self, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        """A tensor in the place of this one, as the checkpoint has it."""
        parts = revert_weight_conversion(self._module, {self._key: tensor})
        return {self._stored_name(name): part for name, part in parts.items()}

    def _stored_name(self, name: str) -> str:
        """Checkpoints may leave out the prefix of the base model, or have it in excess."""
        if self._stored is None or name in self._stored:
            return name
        prefix = f"{self._module.base_model_prefix}."
        return name.removeprefix(prefix) if name.startswith(prefix) else prefix + name
