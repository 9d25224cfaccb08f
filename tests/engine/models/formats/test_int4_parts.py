"""Parts of products joined: what each means alone it means in the whole."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from engine.kernels.quantized.int4 import pack
from engine.models.formats.int4 import Int4Part
from engine.models.formats.separate import SeparateParts, join

INPUTS, GROUP = 64, 32


def part(channels: int, *, symmetric: bool, seed: int) -> Int4Part:
    """A random weight, whose zero points are far from the middle unless it is symmetric."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randint(0, 16, (channels, INPUTS), generator=generator, dtype=torch.uint8)
    scales = torch.rand((channels, INPUTS // GROUP), generator=generator) + 0.5
    ends = torch.tensor([0, 1, 14, 15], dtype=torch.uint8)
    at = torch.randint(0, 4, scales.shape, generator=generator)
    return Int4Part(pack(q, scales, None if symmetric else ends[at], GROUP))


@pytest.mark.parametrize("symmetric", list(itertools.product([True, False], repeat=3)))
def test_joined_4_bit_parts_keep_their_zero_points(symmetric: tuple[bool, ...]) -> None:
    """Tools store none for a symmetric part, which means the middle of the code."""
    parts = [part(4 + i, symmetric=each, seed=i) for i, each in enumerate(symmetric)]
    joined = join(parts)
    assert isinstance(joined, Int4Part)
    assert (joined.groups.zeros is None) == all(symmetric)
    wanted = torch.cat([each.dequantized() for each in parts])
    assert torch.equal(joined.dequantized(), wanted)


def test_parts_whose_columns_differ_stay_apart() -> None:
    first, second = part(4, symmetric=True, seed=1), part(4, symmetric=False, seed=2)
    order = torch.arange(INPUTS).flip(0)
    assert isinstance(join([first, replace(second, order=order)]), SeparateParts)
    whole = join([replace(first, order=order), replace(second, order=order.clone())])
    wanted = torch.cat([first.dequantized(), second.dequantized()]).flip(1)
    assert torch.equal(whole.dequantized(), wanted)
