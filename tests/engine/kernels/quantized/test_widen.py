"""Pages in float8 are copied exactly: a number times a power of two has few bits."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.quantized.widen import widen_pages
from engine.memory.pages import FP8_CACHE
from tests.engine.kernels.where import DEVICES


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("heads", "width"), [(2, 64), (3, 80), (8, 128)])
def test_kernel(heads: int, width: int, device: str) -> None:
    torch.manual_seed(0)
    pages = (torch.randn(6, 2, 16, heads, width) * 50).to(FP8_CACHE).to(device)
    scales = (2.0 ** torch.randint(-8, 3, (2, heads))).to(device)  # a GPU's powers are inexact
    blocks = torch.tensor([4, 0, 5, 4], dtype=torch.int32, device=device)
    out = torch.full((4, *pages.shape[1:]), torch.nan, dtype=torch.bfloat16, device=device)
    widen_pages(pages, blocks, scales, out)
    wanted = pages.float()[blocks.long()] * scales[None, :, None, :, None]
    assert torch.equal(out.float(), wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_no_pages(device: str) -> None:
    pages = torch.zeros(1, 2, 16, 1, 64, device=device).to(FP8_CACHE)
    blocks = torch.zeros(0, dtype=torch.int32, device=device)
    out = torch.empty((0, *pages.shape[1:]), dtype=torch.bfloat16, device=device)
    widen_pages(pages, blocks, torch.ones(2, 1, device=device), out)
