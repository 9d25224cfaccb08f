"""Kernels of stateful layers compile for a Hopper GPU, at the sizes of models that people run."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.recurrent import chunk_products
from engine.kernels.recurrent.convolution import (
    MOST_ENTERED,
    Convolution,
    causal_convolution_triton,
    ring_length,
)
from engine.kernels.recurrent.gated_norm import GatedNorm, gated_norm_triton
from engine.kernels.recurrent.matrices import (
    Drafted,
    HeadWeights,
    Matrices,
    Rule,
    TokenInputs,
    drafted_length,
)
from engine.kernels.recurrent.recurrence_chunked import recurrence_chunked
from engine.kernels.recurrent.recurrence_serial import recurrence_serial
from engine.memory.state_rows import Extent
from tests.engine.kernels.recurrent.calls import Part, state_rows
from tests.no_gpu.compiler import compiled_only, needs_compiler

pytestmark = needs_compiler
BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("heads", "key_heads", "k", "v", "delta", "by_channel"),
    [
        pytest.param(48, 16, 128, 128, True, False, id="qwen3.6-27b"),
        pytest.param(30, 30, 96, 192, True, False, id="olmo-hybrid-7b"),
        pytest.param(64, 8, 128, 64, False, False, id="nemotron-nano"),
        pytest.param(32, 32, 128, 128, True, True, id="kimi-linear"),
    ],
)
def test_recurrences(
    heads: int,
    key_heads: int,
    k: int,
    v: int,
    delta: bool,
    by_channel: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_tokens, length = 4, drafted_length(3)
    channels = (k,) if by_channel else ()
    mixed = torch.zeros(num_tokens, 2 * key_heads * k + heads * v, dtype=BF16)
    q, keys, values = torch.split(mixed, [key_heads * k, key_heads * k, heads * v], dim=1)
    inputs = TokenInputs(
        q.view(num_tokens, key_heads, k),
        keys.view(num_tokens, key_heads, k),
        values.view(num_tokens, heads, v),
        torch.zeros(num_tokens, heads, *channels, dtype=BF16),
        torch.zeros(num_tokens, heads, dtype=BF16),
    )
    own = torch.zeros(heads)
    weights = HeadWeights(own, torch.zeros(heads, *channels), None if delta else own)
    memory = Matrices(
        torch.zeros(2, heads, v, k),
        Drafted(
            torch.zeros(2, length, key_heads, k, dtype=BF16),
            torch.zeros(2, length, heads, v, dtype=BF16),
            torch.zeros(2, length, heads, *channels),
            torch.zeros(2, length, heads),
        ),
    )
    rows = state_rows([Part(0, 0, num_tokens, 1)])
    rule = Rule(delta, 1.0)
    with compiled_only() as compiled:
        recurrence_serial(inputs, rule, weights, memory, rows, Extent(num_tokens, 1))
        recurrence_chunked(inputs, rule, weights, memory, rows, Extent(num_tokens))
        monkeypatch.setattr(chunk_products, "ENOUGH", 0)  # of many chunks
        recurrence_chunked(inputs, rule, weights, memory, rows, Extent(num_tokens))
    made = "_channel_products_kernel" if by_channel else "_products_kernel"
    assert compiled.names == {"_serial_kernel", made, "_scan_kernel"}
    for kernel in compiled.compiled.values():  # a scan needs more than there are
        is_tight = kernel.name == "_scan_kernel" or kernel.registers == chunk_products.REGISTERS
        assert kernel.stack == 0 or is_tight, kernel


@pytest.mark.parametrize("rows", [1, 400])
@pytest.mark.parametrize("num_certain", [None, 1])
@pytest.mark.parametrize(("tokens", "width"), [(1, 4), (4, 4), (40, 3)])
def test_convolutions(tokens: int, width: int, num_certain: int | None, rows: int) -> None:
    """Of lone rows and of many, whose launches have other shapes."""
    bias, num_channels = width == 3, 300
    weight = torch.zeros(num_channels, width, dtype=BF16)
    kernel = Convolution(weight, weight[:, 0].contiguous() if bias else None, silu=not bias)
    ring = torch.zeros(2, ring_length(width, 3), num_channels, dtype=BF16)
    x, extent = torch.zeros(rows * tokens, num_channels, dtype=BF16), Extent(tokens, num_certain)
    with compiled_only() as compiled:
        causal_convolution_triton(
            x, kernel, ring, state_rows([Part(0, 0, tokens, 1)] * rows), extent
        )
    others = {"enter_kernel"} if num_certain is None or tokens > MOST_ENTERED else set()
    assert compiled.names == {"convolution_kernel", *others}
    assert not any(kernel.stack for kernel in compiled.compiled.values())


@pytest.mark.parametrize(("groups", "width"), [(48, 128), (30, 192), (8, 512), (8, 1024)])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_gated_norms(dtype: torch.dtype, groups: int, width: int) -> None:
    """Of few tokens and of many, whose launches have other shapes."""
    with compiled_only() as compiled:
        for num_tokens in (1, 3000):
            x = torch.zeros(num_tokens, groups, width, dtype=BF16)
            norm = GatedNorm(torch.zeros(width, dtype=dtype), 1e-6)
            gated_norm_triton(norm, x, x)
    assert compiled.names == {"_gated_norm_kernel"}
    assert len(compiled.compiled) == (1 if width > 512 else 2)
    for kernel in compiled.compiled.values():
        assert kernel.stack == 0, kernel
