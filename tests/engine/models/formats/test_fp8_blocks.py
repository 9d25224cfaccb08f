"""Whether channels by 128 have the scales of one block whatever is written."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.kernels.fp8 import FP8
from engine.kernels.quantized.fp8_blocks import SPAN, Fp8Blocks
from engine.models.formats.fp8_blocks import BlockPart
from engine.models.formats.part import Own


def part_of(num_channels: int) -> BlockPart:
    """Equal scales, which blocks that are joined have by chance."""
    return BlockPart(Fp8Blocks(torch.zeros(num_channels, 8).to(FP8), torch.ones(num_channels, 1)))


@pytest.mark.parametrize(
    ("lengths", "has_blocks"),
    [
        ((128,), True),
        ((128, 256, 128), True),
        ((256, 64), True),
        ((64, 64), False),
        ((192, 64, 128), False),
    ],
)
def test_joined_parts(lengths: tuple[int, ...], has_blocks: bool) -> None:
    parts = [part_of(length) for length in lengths]
    joined = parts[0].joined(parts)
    assert joined is not None
    assert joined.has_blocks == has_blocks
    again = joined.joined([joined, part_of(SPAN)])
    assert again is not None
    assert again.has_blocks == (has_blocks and sum(lengths) % SPAN == 0)


@pytest.mark.parametrize(
    ("own", "has_blocks"),
    [
        (slice(128, 384), True),
        (slice(64, 192), False),
        (torch.arange(128, 384), True),
        (torch.arange(384).view(3, 2, 64).transpose(1, 2).flatten(), True),
        (torch.arange(384).view(3, 128)[[2, 0, 1]].flatten(), True),
        (torch.arange(384).view(6, 64)[[0, 2, 1, 3]].flatten(), False),
        (torch.arange(64, 192), False),
    ],
)
def test_some_channels_or_in_another_order(own: Own, has_blocks: bool) -> None:
    part = part_of(384).channels(own)
    assert part.has_blocks == has_blocks
    assert part.inputs(slice(0, 8)).has_blocks == has_blocks
    assert not replace(part_of(384), has_blocks=False).channels(own).has_blocks
