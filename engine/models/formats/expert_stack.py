"""Experts' weights put together from the parts in which a checkpoint has them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.errors import ModelError
from engine.kernels.experts.products import ExpertProduct
from engine.models.formats.int4 import is_same_order
from engine.models.formats.part import InputsOfExpert, Part


class ExpertStack:
    """Weights of all experts [experts, out, in], each part of which is put into its place.

    No weight is in memory twice: the first part says how all are stored. Parts of one expert
    have the same inputs, which a kernel takes but once: one scale rounds them, or one order.

    Args:
        place: names a module for errors.
    """

    def __init__(self, place: Callable[[str], str], num_experts: int, num_channels: int) -> None:
        self._place, self._leading = place, (num_experts, num_channels)
        self._first: Part | None = None
        self._tensors: list[torch.Tensor] = []
        self._inputs = [InputsOfExpert()] * num_experts

    def put(self, expert: int, start: int, part: Part, module: str) -> None:
        """Put the channels of an expert from `start` on, which the checkpoint has as `module`.

        Raises:
            ModelError: it is stored otherwise than those before, or in a way that is not served.
        """
        if part.lack_as_expert is not None:
            lack = part.lack_as_expert
            raise ModelError(f"{self._place(module)}: {lack}, or the unquantized one as MODEL")
        if self._first is None:
            self._first = part
            self._tensors = [self._room(tensor) for tensor in part.tensors]
        if not self._first.goes_with(part):
            raise ModelError(
                f"{self._place(module)}: experts of one layer are stored in different ways "
                f"(expert {expert} is not as those before); give the unquantized model as MODEL"
            )
        self._note_inputs(expert, part.for_experts, module, is_first=start == 0)
        self.part(expert, start, part.num_channels).copy_(part)

    def part(self, expert: int, start: int, num_channels: int) -> Part:
        """Some channels of an expert, which share memory with all."""
        assert self._first is not None
        rows = slice(start, start + num_channels)
        part = self._first.over([tensor[expert, rows] for tensor in self._tensors])
        return part.taking(self._inputs[expert])

    def _room(self, tensor: torch.Tensor) -> torch.Tensor:
        """Room for a tensor of each expert's channels."""
        return tensor.new_empty((*self._leading, *tensor.shape[1:]))

    def _note_inputs(
        self, expert: int, inputs: InputsOfExpert, module: str, *, is_first: bool
    ) -> None:
        """Note what a part makes of its inputs; raises `ModelError` where an expert's differ."""
        if is_first:
            self._inputs[expert] = inputs
        noted = self._inputs[expert]
        for name, same in (
            ("scales (input_scale)", inputs.scale == noted.scale),
            ("orders (desc_act, g_idx)", is_same_order(inputs.order, noted.order)),
        ):
            if not same:
                raise ModelError(
                    f"{self._place(module)}: gate and up of one expert take the same inputs by "
                    f"different {name}, which is not served; give the unquantized model as MODEL"
                )

    @property
    def product(self) -> ExpertProduct:
        """The product; all parts were put."""
        assert self._first is not None
        return self._first.stacked(self._tensors, self._inputs)
