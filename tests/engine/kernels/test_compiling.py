"""Kernels that models ask for compile for a Hopper GPU, on a machine that has none.

The interpreter accepts what the compiler does not, a range over what is no constant for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from engine.attention.cuda import launch_kernels
from engine.batch import RequestRows
from engine.contracts.attention import AttentionSpec
from engine.kernels.decode.attention import paged_decode, paged_decode_product
from engine.kernels.decode.product import Product
from engine.kernels.decode.split_keys import DecodeScratch
from engine.kernels.experts.few import SharedFew
from engine.kernels.experts.few_router import route_few
from engine.kernels.experts.gates import GELU_TANH, GPT_OSS, RELU2, SILU
from engine.kernels.experts.grouped import grouped_linear
from engine.kernels.experts.groups import Groups, group_pairs_triton
from engine.kernels.experts.inputs import ordered_pairs_triton, rounded_pairs_triton
from engine.kernels.experts.layer import experts_few, experts_few_beside
from engine.kernels.experts.products import DenseExpertProduct
from engine.kernels.experts.routing import RoutingRules, choose_experts_torch, choose_experts_triton
from engine.kernels.fp8 import quantize_rows_torch
from engine.kernels.norm import rms_norm_triton
from engine.kernels.prefill_attention import (
    prefill_attention,
    prefill_tiles,
    tile_width,
    tiling_of,
)
from engine.kernels.prefill_shares import PrefillScratch
from engine.kernels.quantized.fp8_blocks import quantize_spans_torch
from engine.kernels.quantized.fp8_skinny import fp8_skinny_linear
from engine.kernels.quantized.int4 import pack
from engine.kernels.quantized.int4_skinny import int4_skinny_linear
from engine.kernels.skinny import Norm, skinny_linear
from engine.kernels.step_io import (
    DecodeInputs,
    RowState,
    enter_decoded,
    gather_decode_inputs,
)
from engine.memory.pages import FP8_CACHE, KVCache
from engine.runner.graphs.decode_step import launch_ends
from tests.engine.kernels.experts.reference import random_weights
from tests.no_gpu.compiler import Compiler, compiled_only, needs_compiler

pytestmark = needs_compiler
CPU = torch.device("cpu")
ROUTING = [
    RoutingRules(8, over_chosen=True),
    RoutingRules(6, over_chosen=False, scale=16.0, num_groups=8, top_groups=3),
    RoutingRules(8, over_chosen=True, scale=2.5, sigmoid=True, num_groups=8, top_groups=4),
]


@pytest.fixture
def compiled() -> Iterator[Compiler]:
    with compiled_only() as compiler:
        yield compiler


@pytest.mark.parametrize("rules", ROUTING)
def test_routing(rules: RoutingRules, compiled: Compiler) -> None:
    correction = torch.zeros(64) if rules.sigmoid else None
    choose_experts_triton(torch.zeros(3, 64), rules, correction)
    x, residual = torch.zeros((2, 1, 256), dtype=torch.bfloat16)
    router, arrivals = x.expand(64, 256).contiguous(), torch.zeros(1, dtype=torch.int32)
    norm = Norm(residual, x[0], 1e-6)
    for gate in (None, x):
        route_few(x, norm, router, None, rules, arrivals, correction=correction, shared_gate=gate)
    assert compiled.names == {"_choose_kernel", "_route_kernel"}


@pytest.mark.parametrize("gate", [SILU, GPT_OSS, GELU_TANH, RELU2])
def test_few_experts(gate: str, compiled: Compiler) -> None:
    weights = random_weights(8, 64, 96, torch.bfloat16, "cpu", has_bias=gate == GPT_OSS, gate=gate)
    routing = choose_experts_torch(torch.zeros(2, 8), RoutingRules(3, over_chosen=True))
    experts_few(torch.zeros((2, 64), dtype=torch.bfloat16), routing, weights, None)
    group_pairs_triton(routing.ids, 8)
    if gate != GPT_OSS:  # whose experts have biases
        channels = weights.gate_up.shape[1]
        first, second = torch.zeros((channels, 64)), torch.zeros((64, 96))
        shared = SharedFew(first.bfloat16(), second.bfloat16(), None)
        x = torch.zeros((2, 64), dtype=torch.bfloat16)
        for shares in (None, torch.ones(2)):
            experts_few_beside(x, routing, weights, shared, shares)
    assert {"_gate_up_kernel", "_down_kernel"} <= compiled.names


@pytest.mark.parametrize(("gate", "programs"), [(SILU, 1), (None, 2)])
def test_many_experts(gate: str | None, programs: int, compiled: Compiler) -> None:
    """Their registers spill nowhere, and as many programs share a processor as are meant."""
    num_pairs, num_experts = 8192 * 8, 256
    weight = torch.zeros((num_experts, 64, 128), dtype=torch.bfloat16)
    groups = Groups(
        torch.zeros(num_experts + 1, dtype=torch.int32), torch.zeros(num_pairs, dtype=torch.int32)
    )
    x = torch.zeros((num_pairs if gate is None else 8192, 128), dtype=torch.bfloat16)
    grouped_linear(x, DenseExpertProduct(weight), None, groups, 8, gate)
    (kernel,) = compiled.compiled.values()
    assert kernel.stack == 0
    assert programs * kernel.registers * kernel.warps * 32 <= 1 << 16
    assert programs * (kernel.shared + (1 << 10)) <= 228 << 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_of_pairs(dtype: torch.dtype, compiled: Compiler) -> None:
    x, ids = torch.zeros((2, 1536), dtype=dtype), torch.zeros((2, 3), dtype=torch.int32)
    rounded_pairs_triton(x, ids, torch.ones(8), None)
    ordered_pairs_triton(x.repeat(3, 1), ids, torch.zeros((8, 1536), dtype=torch.int32), ids[0])
    assert compiled.names == {"_pairs_kernel"}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("quantize", [quantize_rows_torch, quantize_spans_torch])
def test_lone_quantised_rows(quantize: Any, gated: bool, compiled: Compiler) -> None:
    x, residual = torch.zeros((2, 1, 1536), dtype=torch.bfloat16)
    norm = Norm(residual, x[0], 1e-6)
    weight = quantize(torch.ones(36, 1536))
    fp8_skinny_linear(x, weight, None, x.dtype, norm=norm, gated=gated)
    fp8_skinny_linear(quantize(x), weight, x[0, :36], x.dtype, gated=gated)
    numbers, scales = torch.ones((36, 1536), dtype=torch.uint8), torch.ones(36, 12)
    for zeros in (None, scales.byte()):
        packed = pack(numbers, scales.bfloat16(), zeros, 128)
        int4_skinny_linear(x, packed, None, norm=norm, gated=gated)
    assert compiled.names == {"_fp8_skinny_kernel", "_int4_skinny_kernel"}


@pytest.mark.parametrize("max_rows", [31, 256])
def test_what_is_begun_of_decode_steps_is_what_they_launch(
    max_rows: int, compiled: Compiler
) -> None:
    launch_ends(RequestRows(0, 65, 16, CPU), max_rows)
    begun = set(compiled.compiled)
    rows = RequestRows(max_rows, 65, 16, CPU)
    state = RowState(rows.token_ids, rows.num_computed, rows.limits, rows.drafts, rows.block_tables)
    inputs = DecodeInputs.empty(max_rows, 0, rows.block_tables.shape[1], CPU)
    ids = torch.full((max_rows,), max_rows)
    for size in (1, max_rows):
        gather_decode_inputs(ids[:size], state, inputs.of_rows(size), 16)
        enter_decoded(ids[:size], torch.zeros((size, 1), dtype=torch.int32), state)
    assert set(compiled.compiled) == begun
    assert compiled.names == {"_gather_kernel", "_enter_kernel"}


SPECS = {
    "keys wider than values": AttentionSpec(4, 4, 192, 0.1),
    "sinks in a window": AttentionSpec(8, 2, 64, 0.1, sliding_window=37, sinks=torch.zeros(8)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SPECS)
def test_attention(name: str, dtype: torch.dtype, compiled: Compiler) -> None:
    spec = SPECS[name]
    pages = KVCache([spec], 3, 16, dtype, CPU).layers[0]
    q = torch.zeros((2, spec.num_q_heads, spec.head_dim), dtype=dtype)
    tables, lengths = torch.ones((2, 1), dtype=torch.int32), torch.full((2,), 9, dtype=torch.int32)
    scratch = DecodeScratch([spec], 2, CPU)
    paged_decode(spec, q, pages, tables, lengths, q, scratch)
    width = (spec.num_q_heads + 2 * spec.num_kv_heads) * spec.head_dim
    positions = torch.full((2,), 8)
    product = Product(
        torch.zeros((2, width), dtype=dtype), None, torch.zeros(16, q.shape[2]), 1e-6, 0
    )
    paged_decode_product(spec, product, positions, positions, pages, tables, lengths, q, scratch)
    group = spec.num_q_heads // spec.num_kv_heads
    tiling = tiling_of(spec.head_dim, dtype, CPU)
    starts = np.arange(3, dtype=np.int32)
    tiles = torch.from_numpy(prefill_tiles(starts, lengths.numpy(), 1, group, tiling))
    prefill_attention(spec, q, pages, tables, tiles, torch.empty_like(q), tiling)
    rms_norm_triton(q.flatten(1)[:, 8:], torch.ones(q[0].numel() - 8, dtype=dtype), 1e-6)
    assert compiled.names == {"_decode_kernel", "_prefill_kernel", "_rms_norm_kernel"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 256])
def test_what_is_launched_ahead_serves_all_numbers_of_rows(
    head_dim: int, dtype: torch.dtype, compiled: Compiler
) -> None:
    spec = AttentionSpec(8, 2, head_dim, 0.1)
    cache = KVCache([spec], 3, 16, dtype, CPU)
    launch_kernels([spec], cache)
    ahead = set(compiled.compiled)
    scratch, tables = DecodeScratch([spec], 300, CPU), torch.ones((300, 1), dtype=torch.int32)
    for num_rows in (*range(1, 40), 64, 256, 300):
        q, rows = torch.zeros((num_rows, 8, head_dim), dtype=dtype), tables[:num_rows]
        paged_decode(spec, q, cache.layers[0], rows, rows[:, 0], torch.empty_like(q), scratch)
    assert set(compiled.compiled) == ahead


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8_CACHE])
@pytest.mark.parametrize("heads", [(8, 2, 64), (16, 8, 128), (24, 4, 256)])
def test_divided_keys_take_no_more_memory(
    heads: tuple[int, int, int], dtype: torch.dtype, compiled: Compiler
) -> None:
    """What the last share adds up goes through registers that its loops over keys have left. A few
    that it needs then wait on the stack meanwhile."""
    num_heads, kv_heads, head_dim = heads
    spec = AttentionSpec(*heads, 0.1, sinks=torch.zeros(num_heads))
    scales = [torch.ones(2, kv_heads)] if dtype == FP8_CACHE else None
    cache = KVCache([spec], 3, 16, torch.bfloat16, CPU, scales)
    q = torch.zeros((1, num_heads, head_dim), dtype=torch.bfloat16)
    tables, group = torch.ones((1, 1), dtype=torch.int32), num_heads // kv_heads
    tiling = tiling_of(head_dim, q.dtype, CPU)
    starts, lengths = np.array([0, 1], dtype=np.int32), np.array([9], dtype=np.int32)
    tiles = torch.from_numpy(prefill_tiles(starts, lengths, 1, group, tiling))
    count = group * tile_width(group, tiling)
    scratch = PrefillScratch(count, count * head_dim, CPU)
    divided = scratch.divided(1, 4096, some_empty=False)
    assert divided is not None
    rows = (spec, q, cache.layers[0], tables, tiles, torch.empty_like(q), tiling)
    for each in (None, divided):
        prefill_attention(*rows, cache.layer_scales(0), each)
    whole, parts = compiled.compiled.values()
    assert parts.stack <= whole.stack + 16
    assert parts.shared <= whole.shared


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8_CACHE])
def test_kernels_of_a_lone_row_split_a_processors_memory_alike(
    dtype: torch.dtype, compiled: Compiler
) -> None:
    """Else the next begins where no other runs: Triton asks for another split above 48 KiB."""
    spec = AttentionSpec(16, 8, 128, 0.1)
    scales = [torch.ones(2, 8)] if dtype == FP8_CACHE else None
    cache = KVCache([spec], 3, 16, torch.bfloat16, CPU, scales)
    pages = cache.layers[0]
    q = torch.zeros((1, 16, 128), dtype=torch.bfloat16)
    tables, lengths = torch.ones((1, 1), dtype=torch.int32), torch.full((1,), 9, dtype=torch.int32)
    scratch = DecodeScratch([spec], 2, CPU, 1, pages.element_size())
    scale = cache.layer_scales(0)
    paged_decode(spec, q, pages, tables, lengths, q, scratch, scales=scale)
    skinny_linear(q.flatten(1), torch.zeros((64, 2048), dtype=q.dtype), gated=True)
    assert compiled.names == {"_decode_kernel", "_skinny_kernel"}
    assert all(each.shared <= 48 << 10 for each in compiled.compiled.values())
