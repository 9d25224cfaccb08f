"""Sums of `in` products of both signs in float32, then of `rank`: errors stay far below 1e-5.

In 16 bits the shrunk inputs are rounded once more: a unit of 2^-11 of
numbers near 1, and the result by half a unit of numbers up to 8.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine.kernels.activation import silu_and_mul_triton
from engine.kernels.lora.delta import add_delta, add_delta_torch, add_delta_triton
from engine.kernels.lora.expand import expand_gated_triton
from engine.kernels.lora.groups import TILE
from engine.kernels.lora.shrink import SPAN, shrink_triton
from tests.engine.kernels.lora.cases import Case, groups_of, make
from tests.engine.kernels.where import DEVICES

TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2}
MIXED = [0, -1, 2, 0, 1, -1, *[1] * (TILE + 3)]


def check(case: Case) -> None:
    tolerance = TOLERANCE[case.x.dtype]
    torch.testing.assert_close(case.out.cpu().double(), case.wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("rank", [16, 64])
def test_twin_equals_float64(rank: int, normed: bool) -> None:
    case = make(MIXED, [40, 24, 24], 96, rank, normed=normed)
    add_delta_torch(case.out, case.x, case.stacks, case.groups, case.norm)
    check(case)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("rank", "num_inputs", "widths"), [(16, SPAN + 40, [40, 24]), (128, 96, [150])]
)
def test_kernels_equal_float64(
    rank: int, num_inputs: int, widths: list[int], normed: bool, dtype: torch.dtype, device: str
) -> None:
    case = make(MIXED, widths, num_inputs, rank, normed=normed, dtype=dtype, device=device)
    add_delta_triton(case.out, case.x, case.stacks, case.groups, case.norm)
    check(case)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_without_an_adapter_keep_their_bits(device: str) -> None:
    case = make(MIXED, [40, 24], 96, 16, device=device)
    before = case.out.clone()
    bare = torch.from_numpy(case.slots == -1)
    case.x[bare] = float("nan")  # nor are they read
    add_delta_triton(case.out, case.x, case.stacks, case.groups)
    assert torch.equal(case.out[bare], before[bare])
    assert not torch.equal(case.out[~bare], before[~bare])


def bits_alone_and_among_others(apply: Callable[..., None], case: Case, device: str) -> None:
    """A token has the bits of a step of its own, whatever is beside it and where it is."""
    before = case.out.clone()
    apply(case.out, case.x, case.stacks, case.groups, case.norm)
    for token in (0, 3, len(MIXED) - 1):
        own = before[token : token + 1].clone()
        groups = groups_of(case.slots[token : token + 1], device)
        apply(own, case.x[token : token + 1].contiguous(), case.stacks, groups, case.norm)
        assert torch.equal(own[0], case.out[token])


@pytest.mark.parametrize("normed", [False, True])
def test_bits_of_the_twin_do_not_depend_on_the_batch(normed: bool) -> None:
    case = make(MIXED, [40, 24], 96, 16, normed=normed)
    bits_alone_and_among_others(add_delta_torch, case, "cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("normed", [False, True])
def test_bits_of_the_kernels_do_not_depend_on_the_batch(normed: bool, device: str) -> None:
    case = make(MIXED, [40, 24], SPAN + 40, 16, normed=normed, device=device)
    bits_alone_and_among_others(add_delta_triton, case, device)


@pytest.mark.parametrize("device", DEVICES)
def test_empty_tiles_are_passed_over(device: str) -> None:
    case = make(MIXED, [40], 96, 16, device=device)
    groups = groups_of(case.slots, device, count=9)
    add_delta_triton(case.out, case.x, case.stacks, groups)
    check(case)


def test_a_step_without_adapters_is_left_alone() -> None:
    case = make([-1, -1], [40], 96, 16)
    before = case.out.clone()
    add_delta(case.out, case.x, case.stacks, groups_of(np.full(2, -1, np.int32), "cpu"))
    assert torch.equal(case.out, before)


@pytest.mark.parametrize("slots", [MIXED, [-1] * 20, [0, 1] * 20])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gates_and_values_are_joined(dtype: torch.dtype, device: str, slots: list[int]) -> None:
    """Rows without an adapter get the bits of the base's own kernel."""
    case = make(slots, [150, 150], 96, 16, dtype=dtype, device=device)
    groups = groups_of(case.slots, device, count=12)
    shrunk = shrink_triton(case.x, case.stacks, groups, None)
    got = expand_gated_triton(case.out, shrunk, case.stacks, groups)
    gate, up = case.wanted.chunk(2, dim=-1)
    wanted = gate / (1 + torch.exp(-gate)) * up
    tolerance = 4 * TOLERANCE[dtype]  # of a gate and of values up to 8
    torch.testing.assert_close(
        got.cpu().double(), wanted, rtol=1e-2 * (dtype != torch.float32), atol=tolerance
    )
    bare = torch.from_numpy(case.slots == -1)
    assert torch.equal(got[bare], silu_and_mul_triton(case.out)[bare])


@pytest.mark.parametrize("device", DEVICES)
def test_a_module_that_an_adapter_leaves_alone_keeps_its_bits(device: str) -> None:
    case = make([0, 1], [40, 24, 24], 96, 16, normed=True, device=device)
    case.stacks.scales[0, 0, :2] = 0
    before = case.out.clone()
    add_delta_triton(case.out, case.x, case.stacks, case.groups, case.norm)
    assert torch.equal(case.out[0, :64], before[0, :64])
    torch.testing.assert_close(
        case.out[0, 64:].cpu().double(), case.wanted[0, 64:], rtol=0, atol=1e-5
    )
    torch.testing.assert_close(case.out[1].cpu().double(), case.wanted[1], rtol=0, atol=1e-5)
