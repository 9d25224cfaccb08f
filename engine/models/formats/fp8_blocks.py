"""Weights in float8 with a scale for each span of a channel; inputs are rounded by spans too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from engine.contracts.named_weights import Portion
from engine.kernels.experts.products import Fp8ExpertProduct
from engine.kernels.quantized.fp8_block_linear import Fp8BlockLinear
from engine.kernels.quantized.fp8_blocks import SPAN, Fp8Blocks
from engine.models.formats.fp8 import join_rows
from engine.models.formats.part import (
    InputsOfExpert,
    LoneProduct,
    Own,
    Part,
    PartPlaces,
    WeightProduct,
    as_bytes,
    groups_of,
)


@dataclass(frozen=True, eq=False)
class BlockPart(Part):
    """A float8 weight with a scale for each span of a channel.

    Attributes:
        has_blocks: whether `SPAN` channels in turn are of one block of the checkpoint, and have
            equal scales whatever is written.
    """

    blocks: Fp8Blocks
    has_blocks: bool = True

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.blocks

    def channels(self, own: Own) -> BlockPart:
        values, scales = self.blocks
        part = self.over((as_bytes(values)[own].view(values.dtype), scales[own]))
        return replace(part, has_blocks=self.has_blocks and _keeps_blocks(own))

    def inputs(self, own: slice) -> BlockPart:
        values, scales = self.blocks
        spans = groups_of(own, SPAN, values.shape[1])
        part = as_bytes(values)[:, own].contiguous().view(values.dtype)
        return self.over((part, scales[:, spans].contiguous()))

    def joined(self, parts: Sequence[Part]) -> BlockPart | None:
        own = [part for part in parts if isinstance(part, BlockPart)]
        if len(own) < len(parts):
            return None
        begin_blocks = all(part.num_channels % SPAN == 0 for part in own[:-1])
        has_blocks = begin_blocks and all(part.has_blocks for part in own)
        return replace(self.over(join_rows([part.blocks for part in own])), has_blocks=has_blocks)

    def stacked(
        self, tensors: Sequence[torch.Tensor], inputs: Sequence[InputsOfExpert]
    ) -> Fp8ExpertProduct:
        return Fp8ExpertProduct(*tensors)

    def over(self, tensors: Sequence[torch.Tensor]) -> BlockPart:
        return replace(self, blocks=Fp8Blocks(*tensors))

    def portions(self, places: PartPlaces) -> dict[str, Portion]:
        values, scales = self.blocks
        spans, (num_channels, width) = places.inputs[::SPAN] // SPAN, places.shape
        return {
            "values": Portion(values, places.shape, (places.outputs, places.inputs)),
            "scales": Portion(scales, (num_channels, -(-width // SPAN)), (places.outputs, spans)),
        }

    def dequantized(self) -> torch.Tensor:
        return self.blocks.dequantized()

    def product(
        self, bias: torch.Tensor | None, dtype: torch.dtype, *, invariant: bool = False
    ) -> WeightProduct:
        blocks, has_blocks = self.blocks, self.has_blocks
        linear = Fp8BlockLinear(blocks, bias, dtype, has_blocks=has_blocks, invariant=invariant)
        return LoneProduct(self, linear)


def _keeps_blocks(own: Own) -> bool:
    """Whether `SPAN` channels in turn are of one block, where they were before."""
    if isinstance(own, slice):
        return bool(own.start % SPAN == 0)
    blocks = own // SPAN
    first = blocks[::SPAN].repeat_interleave(SPAN)[: len(blocks)]
    return bool((blocks == first).all())
