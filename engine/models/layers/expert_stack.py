"""Experts' weights put together from the parts in which a checkpoint has them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.errors import ModelError
from engine.kernels.experts.weights import Fp8Experts, Int4Experts, Weights
from engine.kernels.quantized.int4 import Int4Groups
from engine.models.formats.parts import (
    BlockPart,
    DensePart,
    Fp8Part,
    Int4Part,
    Part,
    is_same_order,
)


class ExpertStack:
    """Weights of all experts [experts, out, in], each part of which is put into its place.

    No weight stands in memory twice: the first part says how all are stored. Parts of one expert
    have the same inputs, which a kernel takes but once: one scale rounds them, or one order.

    Args:
        place: names a module for errors.
    """

    def __init__(self, place: Callable[[str], str], num_experts: int, num_channels: int) -> None:
        self._place, self._leading = place, (num_experts, num_channels)
        self._first: Part | None = None
        self._tensors: list[torch.Tensor] = []
        self._scales: list[float | None] = [None] * num_experts
        self._orders: list[torch.Tensor | None] = [None] * num_experts

    def put(self, expert: int, start: int, part: Part, module: str) -> None:
        """Put the channels of an expert from `start` on, which the checkpoint has as `module`.

        Raises:
            ModelError: it is stored otherwise than those before, or in a way that is not served.
        """
        own, lack = _tensors(part), _lack(part)
        if lack is not None:
            raise ModelError(f"{self._place(module)}: {lack}, or the unquantized one as MODEL")
        if self._first is None:
            self._first = part
            self._tensors = [_room(self._leading, tensor) for tensor in own]
        if not _goes_with(self._first, part):
            raise ModelError(
                f"{self._place(module)}: experts of one layer are stored in different ways "
                f"(expert {expert} is not as those before); give the unquantized model as MODEL"
            )
        self._note_inputs(expert, part, module, is_first=start == 0)
        rows = slice(start, start + len(own[0]))
        for target, tensor in zip(self._tensors, own, strict=True):
            target[expert, rows].copy_(tensor)

    def _note_inputs(self, expert: int, part: Part, module: str, *, is_first: bool) -> None:
        """Note what a part makes of its inputs; raises `ModelError` where an expert's differ."""
        scale = part.input_scale if isinstance(part, Fp8Part) else None
        order = part.order if isinstance(part, Int4Part) else None
        if is_first:
            self._scales[expert], self._orders[expert] = scale, order
        for name, same in (
            ("scales (input_scale)", scale == self._scales[expert]),
            ("orders (desc_act, g_idx)", is_same_order(order, self._orders[expert])),
        ):
            if not same:
                raise ModelError(
                    f"{self._place(module)}: gate and up of one expert take the same inputs by "
                    f"different {name}, which is not served; give the unquantized model as MODEL"
                )

    @property
    def weights(self) -> Weights:
        """The weights; all parts were put."""
        first = self._first
        if isinstance(first, DensePart):
            return self._tensors[0]
        if isinstance(first, Int4Part):
            words, scales, *zeros = (tensor.flatten(0, 1) for tensor in self._tensors)
            groups, own = Int4Groups, first.groups
            packed = groups(words, scales, zeros[0] if zeros else None, own.group, own.in_features)
            return Int4Experts(packed, self._leading[0], order=self._order(own.in_features))
        values, scales = self._tensors
        noted = [scale for scale in self._scales if scale is not None]
        return Fp8Experts(values, scales, scales.new_tensor(noted) if noted else None)

    def _order(self, width: int) -> torch.Tensor | None:
        """The order of each expert's inputs, int32 [experts, in]; None: all are as they come."""
        if all(order is None for order in self._orders):
            return None
        as_they_come = torch.arange(width, device=self._tensors[0].device)
        orders = [as_they_come if order is None else order for order in self._orders]
        return torch.stack(orders).int()


def _room(leading: tuple[int, int], tensor: torch.Tensor) -> torch.Tensor:
    """Room for a tensor of each expert's channels."""
    return tensor.new_empty((*leading, *tensor.shape[1:]))


def _goes_with(first: Part, part: Part) -> bool:
    if isinstance(first, Int4Part) and isinstance(part, Int4Part):
        kinds = [(own.groups.group, own.groups.scales.dtype) for own in (first, part)]
        has_zeros = [own.groups.zeros is None for own in (first, part)]
        return kinds[0] == kinds[1] and has_zeros[0] == has_zeros[1]
    if isinstance(first, Fp8Part) and isinstance(part, Fp8Part):
        return (first.input_scale is None) == (part.input_scale is None)
    return type(first) is type(part)


def _lack(part: Part) -> str | None:
    """Why a part is not served as an expert's, and what is; None if it is."""
    if isinstance(part, Fp8Part) and part.largest_input is not None:
        return (
            "experts whose inputs have a bound (activation_scale_ub) are not served; give a model "
            "without it"
        )
    return None


def _tensors(part: Part) -> tuple[torch.Tensor, ...]:
    """The tensors of a part, channels first."""
    if isinstance(part, DensePart):
        return (part.weight,)
    if isinstance(part, BlockPart):
        return part.blocks
    if isinstance(part, Fp8Part):
        return part.rows
    assert isinstance(part, Int4Part), "experts' products are read one by one"
    groups = part.groups
    return tuple(each for each in (groups.words, groups.scales, groups.zeros) if each is not None)
