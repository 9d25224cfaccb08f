"""Tensors that were given, as a source from which a model's weights are read once more."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from engine.contracts.named_weights import TensorInfo
from engine.errors import ModelError
from engine.models.weights.shares import OwnedPart
from engine.models.weights.stored import TORCH_TYPES, Asked, StoredTensors, WeightSource

TYPE_NAMES = {dtype: name for name, dtype in TORCH_TYPES.items()}


class GivenTensors:
    """The `WeightSource` of whole tensors, by the names that layers ask for.

    Args:
        of: the source that the model was loaded from: tensors are given as it has them.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], of: WeightSource) -> None:
        self._tensors = tensors
        self._is_stored = of.checkpoint is not None
        self._module_name: Callable[[str], str] = str
        if of.checkpoint is not None:
            self._module_name = of.checkpoint.stored_module
        self.asked: Asked = {}
        self.unread = of.unread

    @property
    def checkpoint(self) -> StoredTensors | None:
        return self if self._is_stored else None

    def fill(self, target: torch.Tensor, name: str) -> None:
        target.copy_(self._of_shape(name, tuple(target.shape)))

    def fill_part(self, target: torch.Tensor, name: str, part: OwnedPart) -> None:
        target.copy_(part.of_whole(self._of_shape(name, part.whole_shape(target.shape))))

    def stored(self, name: str) -> torch.Tensor:
        tensor = self._tensors[name]
        self.asked[name] = TensorInfo(tuple(tensor.shape), tensor.dtype)
        return tensor

    def stored_type(self, name: str) -> str:
        return TYPE_NAMES[self._tensors[name].dtype]

    def stored_module(self, module: str) -> str:
        return self._module_name(module)

    def stored_name(self, name: str) -> str:
        return name

    def shape(self, name: str) -> tuple[int, ...] | None:
        return tuple(self._tensors[name].shape) if name in self._tensors else None

    def place(self, name: str) -> str:
        return "the given weights"

    def finish(self) -> None:
        pass

    def _of_shape(self, name: str, wanted: tuple[int, ...]) -> torch.Tensor:
        tensor = self.stored(name)
        if tuple(tensor.shape) != wanted:
            raise ModelError(
                f"weight {name!r} has shape {list(tensor.shape)}, the model's has {list(wanted)}"
            )
        return tensor
