"""What each weight format offers: weights that are cut, joined and multiplied by.

A `Part` is the weight of one module, or of several modules of one input that were joined: its
tensors as they are stored. A rank's part is some of its channels, or of its inputs, with the scales
they have in the whole. A `WeightProduct` multiplies by a part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from engine.contracts.named_weights import Portion
from engine.kernels.experts.products import ExpertProduct
from engine.kernels.linear import Linear
from engine.kernels.norm_linear import LoneLinear, NormedLinear

Own = slice | torch.Tensor
"""Some channels: a range, or their indices int64 in the order that they are taken in."""


class Normed(Protocol):
    """Maps (x, residual) to (the product of their normed sum, the sum)."""

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[Any, torch.Tensor]:
        """Add, normalize, multiply; `residual` may be overwritten by the sum, None adds nothing."""
        ...


class SkinnyWeight(NamedTuple):
    """A weight [out, in] of 16 bits, and the bias [out]."""

    weight: torch.Tensor
    bias: torch.Tensor | None


class WeightProduct(ABC):
    """A product by one part.

    Attributes:
        linear: maps x [T, in] to [T, out]; where `takes_rounded`, also rows that are in float8.
        takes_rounded: a norm's or an activation's kernel may round its inputs.
    """

    linear: Linear
    takes_rounded = False

    @abstractmethod
    def normed(self, norm: torch.Tensor, eps: float) -> Normed:
        """The product of an RMSNorm by a weight [in], with what kernels fuse of the two."""

    @abstractmethod
    def gated(self, norm: torch.Tensor, eps: float, *, rounded: bool) -> Normed:
        """The product of an RMSNorm, its halves joined as silu(first) * second.

        Args:
            rounded: the next product takes rows that are rounded, and they may be.
        """

    def takes_lone(self, x: torch.Tensor) -> bool:
        """Whether the kernel that takes the norm and the gate along multiplies x [T, in]."""
        return False

    def norms_apart(self, x: torch.Tensor) -> bool:
        """Whether `normed` is to the bit `linear` of a norm of x [T, in], not rounded further."""
        return False

    def skinny_weight(self) -> SkinnyWeight | None:
        """What `skinny_linear` multiplies by; None where another kernel takes few rows."""
        return None

    @abstractmethod
    def part(self) -> Part:
        """The weight: the tensors that the product reads, or copies of those laid out for it."""

    @abstractmethod
    def refresh(self, part: Part) -> None:
        """Take over what was written into the tensors of `part()`."""


class LoneProduct(WeightProduct):
    """A product whose kernel may take the norm and the gate of a lone row along.

    Args:
        part: whose tensors the product reads.
    """

    def __init__(self, part: Part, linear: LoneLinear) -> None:
        self._part, self._linear = part, linear
        self.linear = linear

    def normed(self, norm: torch.Tensor, eps: float) -> Normed:
        return NormedLinear(norm, eps, self._linear, gated=False)

    def gated(self, norm: torch.Tensor, eps: float, *, rounded: bool) -> Normed:
        return NormedLinear(norm, eps, self._linear, gated=True)

    def takes_lone(self, x: torch.Tensor) -> bool:
        return self._linear.takes_lone(x)

    def norms_apart(self, x: torch.Tensor) -> bool:
        return not self.takes_lone(x)

    def part(self) -> Part:
        return self._part

    def refresh(self, part: Part) -> None:
        self._linear.refresh()


class InputsOfExpert(NamedTuple):
    """What an expert's product makes of its inputs, which is the same for gate and up.

    Attributes:
        scale: that they are rounded by. order: int64 [in], in which they are taken.
    """

    scale: float | None = None
    order: torch.Tensor | None = None


class PartPlaces(NamedTuple):
    """Where the numbers of a part are in the whole weight.

    Attributes:
        shape: of the whole. outputs: int64, the output of each channel; None is all, in order.
        inputs: int64, the input of each column before the part's own order.
        groups: int64 [in], the group under one scale of each input of the whole.
    """

    shape: tuple[int, int]
    outputs: torch.Tensor | None
    inputs: torch.Tensor
    groups: torch.Tensor


class Part(ABC):
    """A weight [out, in] in one format."""

    for_experts = InputsOfExpert()
    """What it makes of its inputs."""
    lack_as_expert: str | None = None
    """Why it is not served as an expert's, and what is; None if it is."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Its tensors, channels first."""

    @property
    def num_channels(self) -> int:
        """Number of outputs."""
        return len(self.tensors[0])

    @abstractmethod
    def channels(self, own: Own) -> Part:
        """Some channels, or all in another order; those of a range share memory with the whole."""

    @abstractmethod
    def inputs(self, own: slice) -> Part:
        """The part of a rank that has some inputs.

        Raises:
            ValueError: they begin or end inside a group under one scale.
        """

    def in_group_order(self) -> tuple[Part, torch.Tensor | None]:
        """The weight with its inputs in the order of their groups, and that order int64 [in]."""
        return self, None

    @abstractmethod
    def joined(self, parts: Sequence[Part]) -> Part | None:
        """The parts of one product, of which this is the first, as one; None: not in one kernel."""

    def goes_with(self, part: Part) -> bool:
        """Whether another can be stored beside this one as an expert's."""
        return type(self) is type(part)

    @abstractmethod
    def stacked(
        self, tensors: Sequence[torch.Tensor], inputs: Sequence[InputsOfExpert]
    ) -> ExpertProduct:
        """The product of experts whose parts are as this one.

        Args:
            tensors: of all experts, as `tensors` with experts in front.
            inputs: of each expert.
        """

    @abstractmethod
    def over(self, tensors: Sequence[torch.Tensor]) -> Part:
        """A part as this one, of other `tensors`."""

    def taking(self, inputs: InputsOfExpert) -> Part:
        """The same weight, of other inputs."""
        return self

    @abstractmethod
    def portions(self, places: PartPlaces) -> dict[str, Portion]:
        """What it has of the whole weight's numbers, as `engine.models.formats.repack` takes them.

        They are "values" [out, in], or "numbers" of 4 bits, "scales" and "zeros".
        """

    @abstractmethod
    def dequantized(self) -> torch.Tensor:
        """The weight as float32 [out, in]."""

    @abstractmethod
    def product(
        self, bias: torch.Tensor | None, dtype: torch.dtype, *, invariant: bool = False
    ) -> WeightProduct:
        """The product by this weight, its results of a dtype.

        Args:
            invariant: a row's bits may not depend on the number of rows.
        """

    def copy_(self, part: Part) -> None:
        """Write another weight of the same format and shape into this one's tensors."""
        for target, tensor in zip(self.tensors, part.tensors, strict=True):
            target.copy_(tensor)


def as_bytes(values: torch.Tensor) -> torch.Tensor:
    """Float8 numbers as bytes, which can be sliced and copied everywhere."""
    return values.view(torch.uint8)


def groups_of(own: slice, size: int, width: int) -> slice:
    """The groups of `size` inputs that some inputs of `width` make up.

    Raises:
        ValueError: they begin or end inside a group.
    """
    if own.start % size or (own.stop % size and own.stop != width):
        raise ValueError(f"inputs {own.start} to {own.stop} are not whole groups of {size}")
    return slice(own.start // size, -(-own.stop // size))
