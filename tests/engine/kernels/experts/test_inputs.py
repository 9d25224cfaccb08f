"""Inputs of pairs: rounded by their experts' scales, and put into their experts' orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.kernels.experts.inputs import (
    ordered_pairs_torch,
    ordered_pairs_triton,
    rounded_pairs_torch,
    rounded_pairs_triton,
)
from sampling.device.triton_support import INTERPRETED
from tests.engine.kernels.where import DEVICES
from tests.engine.models.formats.float8_scheme import e4m3

NARROW = torch.float16 if INTERPRETED else torch.bfloat16  # to which the interpreter truncates
NUM_EXPERTS, TOP_K = 5, 3
Make = Callable[..., Any]


def by_paths(twin: Make, kernel: Make) -> pytest.MarkDecorator:
    """A function on a CPU, and the kernel where it runs."""
    on_devices = [pytest.param(kernel, *each.values, marks=each.marks) for each in DEVICES]
    return pytest.mark.parametrize(("make", "device"), [(twin, "cpu"), *on_devices])


def some_rows(
    width: int, dtype: torch.dtype, device: str, *, of_pairs: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, list[tuple[int, int]]]:
    """x, ids, pairs, and of each row that is made its row of x and its expert."""
    ids = torch.stack([torch.randperm(NUM_EXPERTS)[:TOP_K] for _ in range(4)])
    x = torch.randn(len(ids) * (TOP_K if of_pairs else 1), width).to(dtype)
    pairs = torch.randperm(ids.numel()) if of_pairs else None
    experts = ids.flatten() if pairs is None else ids.flatten()[pairs]
    sources = [row if of_pairs else row // TOP_K for row in range(len(experts))]
    wanted = list(zip(sources, experts.tolist(), strict=True))
    pairs = None if pairs is None else pairs.int().to(device)
    return x.to(device), ids.int().to(device), pairs, wanted


@by_paths(rounded_pairs_torch, rounded_pairs_triton)
@pytest.mark.parametrize("of_pairs", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, NARROW])
@pytest.mark.parametrize("width", [72, 1100])
def test_rounded(
    make: Make, device: str, width: int, dtype: torch.dtype, *, of_pairs: bool
) -> None:
    x, ids, pairs, wanted = some_rows(width, dtype, device, of_pairs=of_pairs)
    scales = 2.0 ** torch.linspace(-8, -6, NUM_EXPERTS)  # 448 times some is less than some inputs
    x[0, 0] = -3e4
    if not (INTERPRETED and make is rounded_pairs_triton):  # its conversion knows no NaN
        x[0, 1] = torch.nan
    values, own_scales = make(x, ids, scales.to(device), pairs)
    for row, (source, expert) in enumerate(wanted):
        own = x[source].cpu()
        is_number = ~own.isnan()
        expected = e4m3(own[is_number].float() / scales[expert])
        assert torch.equal(values[row].cpu()[is_number].double(), expected)
        assert values[row].cpu().float()[~is_number].isnan().all()
        assert own_scales[row] == scales[expert]
    assert (values.float().abs() == 448).any(), "some inputs are cut off"


@by_paths(ordered_pairs_torch, ordered_pairs_triton)
@pytest.mark.parametrize("of_pairs", [False, True])
@pytest.mark.parametrize("width", [72, 1100])
def test_ordered(make: Make, device: str, width: int, *, of_pairs: bool) -> None:
    x, ids, pairs, wanted = some_rows(width, NARROW, device, of_pairs=of_pairs)
    order = torch.stack([torch.randperm(width) for _ in range(NUM_EXPERTS)])
    got = make(x, ids, order.int().to(device), pairs).cpu()
    assert torch.equal(got, torch.stack([x.cpu()[row, order[e]] for row, e in wanted]))
