"""Sums of `in` products of both signs in float32: errors stay far below 1e-5.

In 16 bits results near 8 are rounded by half a unit of 2^-8, and a normed input by one of 2^-11.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.kernels.lora.delta import add_delta_triton
from engine.kernels.lora.lone import Handovers, lone_linear, lone_shape
from engine.kernels.skinny import Norm, skinny_linear
from tests.engine.kernels.lora.cases import EPS, groups_of, make
from tests.engine.kernels.where import DEVICES

TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2}
HANDED = 48
"""Numbers that the widest product of these tests hands over."""


def silu(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + torch.exp(-x))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("widths", "num_inputs", "normed", "gated"),
    [([40, 24, 24], 96, True, False), ([28], 1100, False, False), ([24, 24], 96, True, True)],
)
@pytest.mark.parametrize("slot", [0, 2])
def test_equals_float64(
    slot: int,
    widths: list[int],
    num_inputs: int,
    normed: bool,
    gated: bool,
    dtype: torch.dtype,
    device: str,
) -> None:
    case = make([slot], widths, num_inputs, 16, normed=normed, dtype=dtype, device=device)
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn((sum(widths), num_inputs), generator=generator) * num_inputs**-0.5
    weight = weight.to(dtype)
    bias = torch.randn(sum(widths), generator=generator).to(dtype)
    x, norm = case.x.cpu().double(), None
    if case.norm is not None:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
        x = x * case.norm.weight.cpu().double()
        half = case.x / 2
        norm = Norm(half, case.norm.weight, EPS)
        case = case._replace(x=half)  # a sum that is exact
    wanted = x @ weight.double().t() + bias.double() + case.wanted - case.before.double()
    if gated:
        gate, up = wanted.chunk(2, dim=-1)
        wanted = silu(gate) * up
    handovers = Handovers(2, HANDED, torch.device(device))
    handovers.begin()
    slots = torch.tensor([slot], dtype=torch.int32, device=device)
    for _ in range(2):
        handover = handovers.take()
        assert handover is not None
        out, sums = lone_linear(
            case.x,
            weight.to(device),
            bias.to(device),
            case.stacks,
            slots,
            handover,
            norm=norm,
            gated=gated,
        )
        torch.testing.assert_close(out.cpu().double(), wanted, rtol=0, atol=TOLERANCE[dtype])
        torch.testing.assert_close(sums, case.x * 2 if normed else case.x, rtol=0, atol=0)
    assert handovers.take() is None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gated", [False, True])
def test_without_an_adapter_it_has_the_bits_of_the_base(gated: bool, device: str) -> None:
    case = make([0], [24, 24], 96, 16, normed=True, device=device)
    assert case.norm is not None
    weight = torch.randn((48, 96), generator=torch.Generator().manual_seed(1)).to(device)
    norm = Norm(case.x.clone(), case.norm.weight, EPS)
    handovers = Handovers(1, HANDED, torch.device(device))
    handover = handovers.take()
    assert handover is not None
    none = torch.tensor([-1], dtype=torch.int32, device=device)
    got = lone_linear(case.x, weight, None, case.stacks, none, handover, norm=norm, gated=gated)
    shape = lone_shape(128, gated=gated)
    wanted = skinny_linear(case.x, weight, norm=norm, gated=gated, shape=shape)
    assert all(torch.equal(*pair) for pair in zip(got, wanted, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_reads_nothing_of_the_one_before(device: str) -> None:
    """Words are kept; numbers that were left would be added to another row's outputs."""
    rows = [make([0], [64], 96, 16, device=device) for _ in range(2)]
    rows[1] = rows[1]._replace(x=torch.flip(rows[1].x, (1,)))
    weight = torch.zeros((64, 96), device=device)
    slots = torch.zeros(1, dtype=torch.int32, device=device)

    def run(handovers: Handovers, x: torch.Tensor) -> torch.Tensor:
        handovers.begin()
        handover = handovers.take()
        assert handover is not None
        return lone_linear(x, weight, None, rows[0].stacks, slots, handover)[0]

    shared = Handovers(1, 16, torch.device(device))
    for case in (*rows, *rows):
        alone = run(Handovers(1, 16, torch.device(device)), case.x)
        assert torch.equal(run(shared, case.x), alone)


def test_words_carry_the_step() -> None:
    handovers = Handovers(1, 16, torch.device("cpu"))
    first = handovers.take()
    handovers.begin()
    second = handovers.take()
    assert first is not None
    assert second is not None
    assert np.shares_memory(first.words.numpy(), second.words.numpy())
    assert second.step.tolist() == [1]


@pytest.mark.gpu
def test_replays_of_a_graph_take_numbers_of_their_own_step() -> None:
    """Two products after one another in a graph, each replay with another row and adapter."""
    case = make([0], [1024, 512, 512], 1024, 16, dtype=torch.float16, device="cuda")
    weight = torch.zeros((2048, 1024), dtype=torch.float16, device="cuda")
    slots = torch.zeros(1, dtype=torch.int32, device="cuda")
    handovers = Handovers(2, HANDED, torch.device("cuda"))
    x = torch.zeros((1, 1024), dtype=torch.float16, device="cuda")

    def run() -> torch.Tensor:
        handovers.begin()
        row = x
        for _ in range(2):
            handover = handovers.take()
            assert handover is not None
            out, _ = lone_linear(row, weight, None, case.stacks, slots, handover)
            row = out[:, :1024].contiguous()
        return out

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run()
    for step in range(300):
        slot = step % 3
        x.copy_(torch.randn_like(x))
        slots.fill_(slot)
        graph.replay()
        row = x
        for _ in range(2):
            wanted = torch.zeros((1, 2048), dtype=torch.float16, device="cuda")
            add_delta_triton(
                wanted, row, case.stacks, groups_of(np.full(1, slot, np.int32), "cuda")
            )
            row = wanted[:, :1024].contiguous()
        # The shrunk row is rounded to 16 bits on the way that is compared with: 2^-11 of it, twice.
        torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-2)
