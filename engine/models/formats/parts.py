"""Weights as products multiply by them, and the parts that one is put together from.

Projections of the same input become one product. Each keeps the scales it came with: float8 weights
have theirs by channel already, 4-bit ones by channel and group. Parts that cannot be multiplied in
one kernel (other schemes, other scales of the input) are multiplied one after the other.

A rank's part of a weight is some of its `channels`, or of its `inputs`, with the scales they have
in the whole. `channels` also gives them all in another order, by their indices int64 [out].
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch

from engine.kernels.fp8 import Fp8Rows, quantize_rows, quantize_rows_within
from engine.kernels.fp8_linear import Fp8Linear
from engine.kernels.linear import Linear, linear
from engine.kernels.quantized.fp8_block_linear import Fp8BlockLinear
from engine.kernels.quantized.fp8_blocks import SPAN, Fp8Blocks
from engine.kernels.quantized.int4 import MIDDLE, Int4Groups, pack
from engine.kernels.quantized.int4_linear import Int4Linear
from engine.models.formats.ordered import ordered_inputs

Own = slice | torch.Tensor


class DensePart(NamedTuple):
    """A weight [out, in] that is not quantised."""

    weight: torch.Tensor

    def channels(self, own: Own) -> DensePart:
        return DensePart(self.weight[own])

    def inputs(self, own: slice) -> DensePart:
        return DensePart(self.weight[:, own].contiguous())

    def dequantized(self) -> torch.Tensor:
        return self.weight.float()

    def product(self, bias: torch.Tensor | None, dtype: torch.dtype) -> Linear:
        return linear(self.weight, bias)


class Fp8Part(NamedTuple):
    """A float8 weight with a scale a channel.

    Attributes:
        input_scale: of all inputs; None makes one for each token.
        largest_input: cut inputs off there before a token's scale is made.
    """

    rows: Fp8Rows
    input_scale: float | None = None
    largest_input: float | None = None

    @property
    def quantizes_as_norms_do(self) -> bool:
        """Whether inputs are rounded as the kernels of norms and activations round."""
        return self.input_scale is None and self.largest_input is None

    def channels(self, own: Own) -> Fp8Part:
        values, scales = self.rows
        return self._replace(rows=Fp8Rows(_bytes(values)[own].view(values.dtype), scales[own]))

    def inputs(self, own: slice) -> Fp8Part:
        values, scales = self.rows
        part = _bytes(values)[:, own].contiguous().view(values.dtype)
        return self._replace(rows=Fp8Rows(part, scales))

    def dequantized(self) -> torch.Tensor:
        return self.rows.dequantized()

    def product(self, bias: torch.Tensor | None, dtype: torch.dtype) -> Fp8Linear:
        rounding = quantize_rows
        if not self.quantizes_as_norms_do:
            rounding = partial(
                quantize_rows_within, scale=self.input_scale, largest=self.largest_input
            )
        return Fp8Linear(self.rows, bias, dtype, rounding)


class BlockPart(NamedTuple):
    """A float8 weight with a scale for each span of a channel."""

    blocks: Fp8Blocks

    def channels(self, own: Own) -> BlockPart:
        values, scales = self.blocks
        return BlockPart(Fp8Blocks(_bytes(values)[own].view(values.dtype), scales[own]))

    def inputs(self, own: slice) -> BlockPart:
        values, scales = self.blocks
        spans = _groups_of(own, SPAN, values.shape[1])
        part = _bytes(values)[:, own].contiguous().view(values.dtype)
        return BlockPart(Fp8Blocks(part, scales[:, spans].contiguous()))

    def dequantized(self) -> torch.Tensor:
        return self.blocks.dequantized()

    def product(self, bias: torch.Tensor | None, dtype: torch.dtype) -> Linear:
        return Fp8BlockLinear(self.blocks, bias, dtype)


class Int4Part(NamedTuple):
    """A 4-bit weight.

    Attributes:
        order: int64 [columns], the input of each column, None as they come. Every input has one;
            further ones are of weight 0.
    """

    groups: Int4Groups
    order: torch.Tensor | None = None

    def channels(self, own: Own) -> Int4Part:
        words, scales, zeros = self.groups[:3]
        part = self.groups._replace(
            words=words[own], scales=scales[own], zeros=None if zeros is None else zeros[own]
        )
        return Int4Part(part, self.order)

    def inputs(self, own: slice) -> Int4Part:
        if self.order is not None:
            return Int4Part(*ordered_inputs(self.groups, self.order, own))
        kept = _groups_of(own, self.groups.group, self.groups.in_features)
        _, scales, zeros, group, _ = self.groups
        zeros = None if zeros is None else zeros[:, kept].contiguous()
        numbers = self.groups.numbers()[:, own]
        return Int4Part(pack(numbers, scales[:, kept].contiguous(), zeros, group))

    def dequantized(self) -> torch.Tensor:
        wide = self.groups.dequantized()
        if self.order is None:
            return wide
        num_inputs = int(self.order.max()) + 1
        return wide.new_zeros(len(wide), num_inputs).index_add_(1, self.order, wide)

    def product(self, bias: torch.Tensor | None, dtype: torch.dtype) -> Linear:
        return Int4Linear(self.groups, bias, self.order)


class SeparateParts(NamedTuple):
    """Parts that are multiplied one after the other."""

    parts: tuple[Part, ...]

    def channels(self, own: torch.Tensor) -> SeparateParts:
        """All channels in another order, in which those of each part stay together."""
        starts = list(accumulate((_num_channels(part) for part in self.parts), initial=0))
        orders = [own[start:end] - start for start, end in pairwise(starts)]
        pairs = zip(self.parts, orders, strict=True)
        return SeparateParts(tuple(part.channels(order) for part, order in pairs))

    def dequantized(self) -> torch.Tensor:
        return torch.cat([part.dequantized() for part in self.parts])

    def product(self, bias: torch.Tensor | None, dtype: torch.dtype) -> Linear:
        widths = [_num_channels(part) for part in self.parts]
        none = [None] * len(widths)
        biases = none if bias is None else list(torch.split(bias, widths))
        pairs = zip(self.parts, biases, strict=True)
        products = [part.product(own, dtype) for part, own in pairs]
        return lambda x: torch.cat([product(x) for product in products], dim=1)


def _bytes(values: torch.Tensor) -> torch.Tensor:
    """Float8 numbers as bytes, which can be sliced and copied everywhere."""
    return values.view(torch.uint8)


def _groups_of(own: slice, size: int, width: int) -> slice:
    """The groups of `size` inputs that some inputs of `width` make up.

    Raises:
        ValueError: they begin or end inside a group.
    """
    if own.start % size or (own.stop % size and own.stop != width):
        raise ValueError(f"inputs {own.start} to {own.stop} are not whole groups of {size}")
    return slice(own.start // size, -(-own.stop // size))


Part = DensePart | Fp8Part | BlockPart | Int4Part | SeparateParts


def join(parts: Sequence[Part]) -> Part:
    """Put the parts of one product together, their channels in order."""
    if len(parts) == 1:
        return parts[0]
    return (
        _joined_dense(parts)
        or _joined_fp8(parts)
        or _joined_blocks(parts)
        or _joined_int4(parts)
        or SeparateParts(tuple(parts))
    )


def _joined_dense(parts: Sequence[Part]) -> Part | None:
    dense = [part for part in parts if isinstance(part, DensePart)]
    if len(dense) < len(parts):
        return None
    return DensePart(torch.cat([part.weight for part in dense]))


def _joined_fp8(parts: Sequence[Part]) -> Part | None:
    fp8 = [part for part in parts if isinstance(part, Fp8Part)]
    if len(fp8) < len(parts) or len({part[1:] for part in fp8}) > 1:
        return None
    values = torch.cat([part.rows.values.view(torch.uint8) for part in fp8])
    rows = Fp8Rows(values.view(fp8[0].rows.values.dtype), torch.cat([p.rows.scales for p in fp8]))
    return fp8[0]._replace(rows=rows)


def _joined_blocks(parts: Sequence[Part]) -> Part | None:
    blocks = [part.blocks for part in parts if isinstance(part, BlockPart)]
    if len(blocks) < len(parts):
        return None
    values = torch.cat([part.values.view(torch.uint8) for part in blocks])
    scales = torch.cat([part.scales for part in blocks])
    return BlockPart(Fp8Blocks(values.view(blocks[0].values.dtype), scales))


def _joined_int4(parts: Sequence[Part]) -> Part | None:
    int4 = [part for part in parts if isinstance(part, Int4Part)]
    first = int4[0] if len(int4) == len(parts) else None
    if first is None or not all(_goes_with(first, part) for part in int4):
        return None
    groups = [part.groups for part in int4]
    zeros = None
    if any(part.zeros is not None for part in groups):
        zeros = torch.cat([_zeros(part) for part in groups])
    joined = first.groups._replace(
        words=torch.cat([part.words for part in groups]),
        scales=torch.cat([part.scales for part in groups]),
        zeros=zeros,
    )
    return Int4Part(joined, first.order)


def _goes_with(first: Int4Part, part: Int4Part) -> bool:
    kinds = [(own.groups.group, own.groups.scales.dtype) for own in (first, part)]
    return is_same_order(first.order, part.order) and kinds[0] == kinds[1]


def is_same_order(order: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether two 4-bit weights have their columns in the same order."""
    if order is None or other is None:
        return order is other
    return torch.equal(order, other)


def _zeros(groups: Int4Groups) -> torch.Tensor:
    if groups.zeros is not None:
        return groups.zeros
    return torch.full(groups.scales.shape, MIDDLE, dtype=torch.uint8, device=groups.words.device)


def _num_channels(part: Part) -> int:
    if isinstance(part, DensePart):
        return len(part.weight)
    if isinstance(part, Fp8Part):
        return len(part.rows.values)
    if isinstance(part, BlockPart):
        return len(part.blocks.values)
    if isinstance(part, Int4Part):
        return len(part.groups.words)
    return sum(_num_channels(inner) for inner in part.parts)
