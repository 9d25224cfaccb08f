"""Experts' weights put together from the parts in which a checkpoint has them."""

from __future__ import annotations

import torch

from engine.errors import ModelError
from engine.kernels.experts.weights import Fp8Experts, Weights
from engine.kernels.fp8 import FP8
from engine.kernels.quantized.fp8_blocks import SPAN
from engine.models.quantized.parts import BlockPart, DensePart, Fp8Part, Part


class ExpertStack:
    """Weights of all experts [experts, out, in], each part of which is put into its place.

    No weight stands in memory twice: the first part says how all are stored.

    Args:
        name: of the experts in the checkpoint, for errors.
    """

    def __init__(
        self, name: str, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._name, self._shape, self._dtype, self._device = name, shape, dtype, device
        self._kind: type[Part] | None = None
        self._tensors: tuple[torch.Tensor, ...] = ()

    def put(self, expert: int, start: int, part: Part) -> None:
        """Put the channels of an expert from `start` on.

        Raises:
            ModelError: it is stored otherwise than those before, or in a way that is not served.
        """
        if self._kind is None:
            self._kind = type(part)
            self._tensors = self._empty(part)
        if type(part) is not self._kind:
            raise ModelError(
                f"{self._name}: experts of one layer are stored in different ways "
                f"(expert {expert} is not as those before); give the unquantized model as MODEL"
            )
        own = _tensors(self._name, part)
        rows = slice(start, start + len(own[0]))
        for target, tensor in zip(self._tensors, own, strict=True):
            target[expert, rows].copy_(tensor)

    @property
    def weights(self) -> Weights:
        """The weights; all parts were put."""
        if self._kind is DensePart:
            return self._tensors[0]
        return Fp8Experts(*self._tensors)

    def _empty(self, part: Part) -> tuple[torch.Tensor, ...]:
        num_experts, channels, width = self._shape
        here = self._device
        if isinstance(part, DensePart):
            return (torch.empty(self._shape, dtype=self._dtype, device=here),)
        scales: tuple[int, ...] = (num_experts, channels)
        if isinstance(part, BlockPart):
            scales = (*scales, -(-width // SPAN))
        values = torch.empty(self._shape, dtype=FP8, device=here)
        return values, torch.empty(scales, device=here)


def _tensors(name: str, part: Part) -> tuple[torch.Tensor, ...]:
    """The tensors of a part, channels first."""
    if isinstance(part, DensePart):
        return (part.weight,)
    if isinstance(part, BlockPart):
        return part.blocks
    if isinstance(part, Fp8Part):
        if not part.quantizes_as_norms_do:
            raise ModelError(
                f"{name}: experts whose inputs have a scale or a bound of their own (input_scale, "
                "activation_scale_ub) are not served; give a model whose scales are made by token "
                "or the unquantized one"
            )
        return part.rows
    raise ModelError(f"{name}: experts in 4 bits are not served; give the unquantized model")
