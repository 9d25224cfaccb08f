"""Tensors of a GPU that is not there: what they are, and what they refuse as a GPU would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.no_gpu.cuda import pretended_gpu
from tests.no_gpu.tensors import GPU, PretendTensor

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")


@pytest.fixture(autouse=True)
def _gpu() -> Iterator[None]:
    with pretended_gpu():
        yield


def test_tensors_are_where_they_are_asked_for() -> None:
    made = [
        torch.zeros(3, device="cuda"),
        torch.arange(3).to(GPU),
        torch.ones(3).to("cuda", torch.bfloat16),
        torch.zeros_like(torch.ones(3), device=GPU),
        torch.ones(3).pin_memory().to(GPU, non_blocking=True)[1:] + 1,
    ]
    assert all(each.is_cuda and each.device == GPU for each in made)
    assert not any(each.cpu().is_cuda for each in made)
    assert not torch.ones(3, pin_memory=True).is_cuda
    with torch.device("cuda"):
        assert torch.ones(3).is_cuda


def test_views_share_memory() -> None:
    whole = torch.zeros((4, 8), device="cuda")
    part = whole[2:, 4:]
    part.fill_(3)
    assert whole.add_(1) is whole
    assert whole.sum().item() == 32 + 8 * 3
    assert part.data_ptr() - whole.data_ptr() == 4 * part.storage_offset() == 4 * 20
    assert part.stride() == (8, 1)
    assert not part.is_contiguous()


def test_nothing_is_shared_between_devices() -> None:
    numbers = np.arange(8)
    moved = torch.from_numpy(numbers)[1:].to(GPU)
    numbers[:] = 0
    assert moved.tolist() == list(range(1, 8))
    assert moved.data_ptr() % 16 == 0
    moved.cpu().zero_()
    assert moved.tolist() == list(range(1, 8))


def test_other_devices_are_refused() -> None:
    ours, theirs = torch.zeros(3, device="cuda"), torch.zeros(3)
    mixes: list[Callable[[], Any]] = [
        lambda: ours + theirs,
        lambda: theirs.add_(ours),
        lambda: torch.cat([ours, theirs]),
        lambda: torch.where(theirs > 0, ours, 1.0),
    ]
    for mix in mixes:
        with pytest.raises(RuntimeError, match="of the CPU and of a GPU"):
            mix()
    with pytest.raises(TypeError, match="numpy"):
        ours.numpy()
    with pytest.raises(TypeError):
        np.asarray(ours)


def test_what_a_gpu_takes_from_the_cpu() -> None:
    ours = torch.zeros(3, device="cuda")
    ours.copy_(torch.arange(3.0))
    assert (ours * torch.tensor(2.0)).tolist() == [0.0, 2.0, 4.0]
    assert ours[torch.tensor([2, 1])].tolist() == [2.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_have_their_shapes(dtype: torch.dtype) -> None:
    x, weight = (torch.ones(shape, dtype=dtype, device="cuda") for shape in ((5, 8), (6, 8)))
    out = torch.ones((5, 6), dtype=dtype, device="cuda")
    for product in (torch.nn.functional.linear(x, weight), x @ weight.t(), torch.mm(x, weight.t())):
        assert isinstance(product, PretendTensor)
        assert (product.shape, product.dtype) == (out.shape, dtype)
    assert torch.mm(x, weight.t(), out=out) is out
    with pytest.raises(AssertionError, match="linear"):
        torch.nn.functional.linear(x, weight.t())
