"""Kernels of adapters compile for a Hopper GPU without spills, and as many fit as are meant.

Registers decide how many programs a processor runs at once: it has 65,536.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine.kernels.lora import embedding, expand, lone, shrink
from engine.kernels.lora.groups import TILE, TokenGroups
from engine.kernels.lora.lone import Handovers, lone_linear
from engine.kernels.lora.shrink import InputNorm, shrink_triton
from engine.kernels.lora.stacks import Stacks
from engine.kernels.skinny import Norm
from sampling.device.overlap import EARLY
from tests.no_gpu.compiler import Compiler, compiled_only, needs_compiler

pytestmark = needs_compiler
NUM_TILES, NUM_TOKENS = 3, 20
REGISTERS = 1 << 16
GATED = ((0, 3072, 6144), 1024), ((0, 12288, 24576), 4096)
PLAIN = ((0, 2048, 3072, 4096), 1024), ((0, 1024), 3072), ((0, 4096), 12288)
"""Outputs between which modules are, and inputs, of products of 0.6B and 8B."""
Shape = tuple[tuple[int, ...], int]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    """Compile launches as those of a graph on a GPU."""

    def overlap(tensor: torch.Tensor) -> dict[str, Any]:
        return {"overlap": EARLY, "launch_pdl": True}

    for module in (embedding, expand, lone, shrink):
        monkeypatch.setattr(module, "overlap_of", overlap)
    with compiled_only() as compiler:
        yield compiler


def stacks_of(shape: Shape, rank: int, dtype: torch.dtype) -> Stacks:
    bounds, num_inputs = shape
    a = torch.zeros((2, 1, len(bounds) - 1, rank, num_inputs), dtype=dtype)
    b = torch.zeros((2, 1, bounds[-1], rank), dtype=dtype)
    return Stacks(a, b, torch.zeros((2, 1, len(bounds) - 1)), bounds)


def groups_of_zeros() -> TokenGroups:
    sizes = (NUM_TILES, TILE), (NUM_TILES,), (NUM_TOKENS,)
    tokens, slots, by_token = (torch.zeros(size, dtype=torch.int32) for size in sizes)
    return TokenGroups(tokens, slots, by_token, in_graph=True)


def programs_at_once(compiler: Compiler) -> int:
    """The fewest of a kernel that fit on a processor."""
    kernels = compiler.compiled.values()
    assert all(kernel.stack == 0 for kernel in kernels)
    return min(
        REGISTERS // (-(-kernel.registers // 8) * 8 * 32 * kernel.warps) for kernel in kernels
    )


@pytest.mark.parametrize(
    ("rank", "dtype"),
    [*((rank, torch.bfloat16) for rank in (16, 64, 256)), (16, torch.float32), (64, torch.float32)],
)
@pytest.mark.parametrize("shape", [*PLAIN, *GATED])
@pytest.mark.parametrize("normed", [False, True])
def test_products_beside(
    shape: Shape, rank: int, dtype: torch.dtype, normed: bool, compiled: Compiler
) -> None:
    if normed and shape != PLAIN[0]:
        pytest.skip("one is enough")
    bounds, num_inputs = shape
    stacks, groups = stacks_of(shape, rank, dtype), groups_of_zeros()
    x = torch.zeros((NUM_TOKENS, num_inputs), dtype=dtype)
    shrunk = shrink_triton(x, stacks, groups, InputNorm(x[0], 1e-6) if normed else None)
    out = torch.zeros((NUM_TOKENS, bounds[-1]), dtype=dtype)
    if shape in GATED:
        expand.expand_gated_triton(out, shrunk, stacks, groups)
    else:
        expand.expand_triton(out, shrunk, stacks, groups)
    assert len(compiled.compiled) == 2
    least = 5 if shape in GATED else 6 if normed else 7
    assert programs_at_once(compiled) >= (least if (rank, dtype) == (16, torch.bfloat16) else 1)


@pytest.mark.parametrize(
    ("shape", "gated", "least"),
    [(GATED[0], True, 9), (GATED[1], True, 2), (PLAIN[2], False, 2), (((0, 4096), 4096), False, 6)],
)
def test_lone_rows(shape: Shape, gated: bool, least: int, compiled: Compiler) -> None:
    """Of products that have programs after the first ones, some fit on a processor at once."""
    bounds, num_inputs = shape
    x = torch.zeros((1, num_inputs), dtype=torch.bfloat16)
    weight = torch.zeros((bounds[-1], num_inputs), dtype=torch.bfloat16)
    handover = Handovers(1, 2 * 16, torch.device("cpu")).take()
    slots = torch.zeros(1, dtype=torch.int32)
    assert handover is not None
    stacks = stacks_of(shape, 16, torch.bfloat16)
    lone_linear(x, weight, None, stacks, slots, handover, gated=gated)
    assert programs_at_once(compiled) >= least


def test_lone_rows_with_their_norm(compiled: Compiler) -> None:
    shape = PLAIN[0]
    x, residual = torch.zeros((2, 1, shape[1]), dtype=torch.bfloat16)
    weight = torch.zeros((shape[0][-1], shape[1]), dtype=torch.bfloat16)
    handover = Handovers(1, 3 * 16, torch.device("cpu")).take()
    slots = torch.zeros(1, dtype=torch.int32)
    assert handover is not None
    stacks, norm = stacks_of(shape, 16, torch.bfloat16), Norm(residual, x[0], 1e-6)
    lone_linear(x, weight, None, stacks, slots, handover, norm=norm)
    assert programs_at_once(compiled) >= 10
