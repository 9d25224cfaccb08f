"""Experts' kernels and their twin against float64: ragged sizes, experts that no token takes."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.experts.few import SharedFew
from engine.kernels.experts.few_router import route_few
from engine.kernels.experts.gates import GELU_TANH, GPT_OSS, RELU2, SILU, num_products
from engine.kernels.experts.grouped import Tile, grouped_linear, tile_of
from engine.kernels.experts.groups import group_pairs
from engine.kernels.experts.layer import (
    Router,
    experts_few,
    experts_few_beside,
    experts_torch,
    experts_triton,
)
from engine.kernels.experts.products import (
    DenseExpertProduct,
    ExpertProduct,
    ExpertWeights,
    Fp8ExpertProduct,
)
from engine.kernels.experts.routing import Routing, RoutingRules, choose_experts
from engine.kernels.experts.weights import DenseExperts
from engine.kernels.norm import rms_norm_torch
from engine.kernels.skinny import Norm
from sampling.device.triton_support import INTERPRETED
from tests.engine.kernels.experts.reference import assert_is_sum, random_weights
from tests.engine.kernels.where import DEVICES

SIZES = [(4, 2, 32, 48), (7, 3, 72, 40), (60, 4, 64, 24)]
"""Experts, how many a token takes, hidden and inner size."""
DTYPES = [torch.float32, torch.bfloat16]
DOT_DTYPES = [torch.float32, torch.float16]
"""The interpreter has no matrix products in bfloat16, and rounds to it another way."""


def some_routing(num_tokens: int, num_experts: int, top_k: int, device: str) -> Routing:
    logits = torch.randn(num_tokens, num_experts, device=device)
    logits[:, 1] = -torch.inf  # an expert that no token takes
    return choose_experts(logits, RoutingRules(top_k, over_chosen=True))


def some_rows(num_tokens: int, hidden: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.randn(num_tokens, hidden, device=device).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate", [SILU, GPT_OSS, GELU_TANH, RELU2])
@pytest.mark.parametrize(("num_experts", "top_k", "hidden", "inner"), SIZES)
def test_twin(
    num_experts: int, top_k: int, hidden: int, inner: int, gate: str, dtype: torch.dtype
) -> None:
    weights = random_weights(
        num_experts, hidden, inner, dtype, "cpu", has_bias=gate == GPT_OSS, gate=gate
    )
    x, routing = some_rows(30, hidden, dtype, "cpu"), some_routing(30, num_experts, top_k, "cpu")
    base = some_rows(30, hidden, dtype, "cpu")
    if dtype == torch.float32:  # in bfloat16 the twin rounds more often than the kernels
        assert_is_sum(experts_torch(x, routing, weights, base), x, *routing, weights, base)
    out = experts_torch(x, routing, weights, None)
    assert out.dtype == dtype
    assert torch.equal(out, experts_torch(x, routing, weights, None))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate", [SILU, GPT_OSS, GELU_TANH, RELU2])
@pytest.mark.parametrize("num_tokens", [1, 2, 4])
@pytest.mark.parametrize(("num_experts", "top_k", "hidden", "inner"), SIZES[:2])
def test_few(
    num_experts: int,
    top_k: int,
    hidden: int,
    inner: int,
    num_tokens: int,
    gate: str,
    dtype: torch.dtype,
    device: str,
) -> None:
    weights = random_weights(
        num_experts, hidden, inner, dtype, device, has_bias=gate == GPT_OSS, gate=gate
    )
    x = some_rows(num_tokens, hidden, dtype, device)
    base = some_rows(num_tokens, hidden, dtype, device) if num_tokens == 2 else None
    routing = some_routing(num_tokens, num_experts, top_k, device)
    assert_is_sum(experts_few(x, routing, weights, base), x, *routing, weights, base)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate", [SILU, RELU2])
@pytest.mark.parametrize("num_tokens", [1, 2, 4])
@pytest.mark.parametrize(("parts", "has_gate"), [(1, True), (1, False), (3, True)])
@pytest.mark.parametrize(("num_experts", "top_k", "hidden", "inner"), SIZES[:2])
def test_few_beside_an_expert_that_all_take(
    num_experts: int,
    top_k: int,
    hidden: int,
    inner: int,
    parts: int,
    num_tokens: int,
    gate: str,
    dtype: torch.dtype,
    device: str,
    *,
    has_gate: bool,
) -> None:
    """It is the sum of its parts, each as a chosen expert would be, at the share of its gate."""
    weights = random_weights(num_experts, hidden, inner, dtype, device, gate=gate)
    apart = random_weights(parts, hidden, inner, dtype, device, gate=gate)
    shared = joined_parts(apart, torch.randn(1, hidden, device=device).to(dtype))
    x = some_rows(num_tokens, hidden, dtype, device)
    routing = some_routing(num_tokens, num_experts, top_k, device)
    shares = torch.rand(num_tokens, device=device) if has_gate else None
    got = experts_few_beside(x, routing, weights, shared, shares)

    products = (weights.gate_up, apart.gate_up), (weights.down, apart.down)
    stacks = [torch.cat([dense_values(each) for each in pair]) for pair in products]
    both = weights._replace(
        gate_up=DenseExpertProduct(stacks[0]), down=DenseExpertProduct(stacks[1])
    )
    own = torch.ones(num_tokens, device=device) if shares is None else shares
    more = torch.arange(parts, device=device, dtype=torch.int32).expand(num_tokens, parts)
    ids = torch.cat([routing.ids, num_experts + more], 1)
    assert_is_sum(
        got, x, ids, torch.cat([routing.weights, own[:, None].expand(more.shape)], 1), both
    )
    assert weights.beside(shared) is shared


def joined_parts(apart: ExpertWeights, gate: torch.Tensor) -> SharedFew:
    """One expert of the width of all of `apart`."""
    first, second = dense_values(apart.gate_up), dense_values(apart.down)
    count, channels, hidden = first.shape
    products = num_products(apart.gate)
    by_product = first.view(count, products, channels // products, hidden).transpose(0, 1)
    down = second.permute(1, 0, 2).reshape(hidden, -1)
    return SharedFew(by_product.reshape(-1, hidden).contiguous(), down.contiguous(), gate)


def dense_values(product: ExpertProduct) -> torch.Tensor:
    assert isinstance(product, DenseExpertProduct)
    return product.values


def test_what_cannot_be_taken_beside_experts_is_left_apart() -> None:
    weights = random_weights(4, 32, 48, torch.bfloat16, "cpu")
    shared = joined_parts(random_weights(1, 32, 40, torch.bfloat16, "cpu"), torch.zeros(1, 32))
    assert weights.beside(None) is weights.beside(shared) is None
    fits = joined_parts(random_weights(2, 32, 48, torch.bfloat16, "cpu"), torch.zeros(1, 32))
    assert weights.beside(fits) is fits
    biased = random_weights(4, 32, 48, torch.bfloat16, "cpu", has_bias=True)
    assert biased.beside(fits) is None
    rounded = Fp8ExpertProduct(dense_values(weights.gate_up), torch.ones(4, 96))
    assert weights._replace(gate_up=rounded).beside(fits) is None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DOT_DTYPES if INTERPRETED else DTYPES)
@pytest.mark.parametrize("gate", [SILU, GPT_OSS, GELU_TANH, RELU2])
@pytest.mark.parametrize("num_tokens", [3, 50])
@pytest.mark.parametrize(("num_experts", "top_k", "hidden", "inner"), SIZES)
def test_many(
    num_experts: int,
    top_k: int,
    hidden: int,
    inner: int,
    num_tokens: int,
    gate: str,
    dtype: torch.dtype,
    device: str,
) -> None:
    weights = random_weights(
        num_experts, hidden, inner, dtype, device, has_bias=gate == GPT_OSS, gate=gate
    )
    x = some_rows(num_tokens, hidden, dtype, device)
    base = some_rows(num_tokens, hidden, dtype, device) if gate == SILU else None
    routing = some_routing(num_tokens, num_experts, top_k, device)
    got = experts_triton(x, routing, weights, base)
    assert_is_sum(got, x, *routing, weights, base)
    assert torch.equal(got, experts_triton(x, routing, weights, base))


@pytest.mark.parametrize("device", DEVICES)
def test_all_tokens_of_one_expert(device: str) -> None:
    weights = random_weights(5, 32, 48, torch.float32, device)
    x = some_rows(40, 32, torch.float32, device)
    ids = torch.tensor([[3, 4]], device=device, dtype=torch.int32).expand(40, 2).contiguous()
    routing = Routing(ids, torch.rand(40, 2, device=device))
    assert_is_sum(experts_triton(x, routing, weights, None), x, *routing, weights)


@pytest.mark.parametrize("device", DEVICES)
def test_tiles_of_every_size_give_one_product(device: str) -> None:
    x, weights = (
        some_rows(37, 64, torch.float32, device),
        random_weights(4, 64, 48, torch.float32, device),
    )
    assert isinstance(weights.gate_up, DenseExpertProduct)
    # Some more than a tile of 16 holds, too many more, fewer; and an expert that no token takes.
    experts = torch.tensor([0, 2, 3]).repeat_interleave(torch.tensor([24, 40, 10]))
    groups = group_pairs(experts.to(device, torch.int32).view(37, 2), 4)
    outs = [
        grouped_linear(x, weights.gate_up, None, groups, 2, SILU, Tile(pairs, rows, 32, 2, 4, more))
        for pairs, rows, more in [(16, 32, 0), (32, 16, 0), (64, 64, 0), (16, 32, 16), (16, 16, 8)]
    ]
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("gate", "channels"), [(SILU, 128), (RELU2, 128), (None, 256), (None, 96)])
def test_tiles_of_many_pairs_give_the_product_of_small_ones(
    gate: str | None, channels: int, device: str
) -> None:
    """Of experts with up to 32 pairs more than their tiles, just as many, and more than these."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    counts = torch.tensor([150, 160, 161, 129])
    num_pairs, width = int(counts.sum()), 128
    ids = torch.arange(4, dtype=torch.int32).repeat_interleave(counts)[:, None].to(device)
    x = some_rows(num_pairs, width, dtype, device)
    rows = channels * (num_products(gate) if gate else 1)
    values = some_rows(4 * rows, width, dtype, device) / width**0.5
    weight = DenseExperts(values.view(4, rows, width))
    tiles = Tile(32, 32, 32, 2, 4), tile_of(64 * num_pairs, 4, channels, gate)
    assert tiles[1].pairs == 128
    assert tiles[1].more
    small, many = (
        grouped_linear(x, weight, None, group_pairs(ids, 4), 1, gate, tile) for tile in tiles
    )
    # Each of 128 sums loses half an eps of float32 of what is summed, 7 at most; a gate multiplies
    # two of the results, 4 at most. Then each is rounded.
    rtol = torch.finfo(dtype).eps
    torch.testing.assert_close(many, small, rtol=rtol, atol=8 * 128 * 7 * 2**-24)


def test_tiles_hold_the_pairs_of_most_experts() -> None:
    assert tile_of(8, 128, 1024, "silu").pairs == 16
    assert tile_of(256 * 8, 128, 1024, "silu").pairs == 32
    assert tile_of(8192 * 8, 128, 2048, None)[:2] == (128, 256)
    assert tile_of(8192 * 8, 128, 2688, None)[:2] == (128, 128)  # ten tiles and a half


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DOT_DTYPES if INTERPRETED else DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 2, 4])
@pytest.mark.parametrize("has_bias", [False, True])
def test_route_few(num_tokens: int, dtype: torch.dtype, device: str, *, has_bias: bool) -> None:
    hidden, num_experts, top_k = 72, 11, 3
    x, residual = some_rows(2 * num_tokens, hidden, dtype, device).chunk(2)
    norm_weight = some_rows(1, hidden, dtype, device)[0]
    weight = some_rows(num_experts, hidden, dtype, device)
    bias = some_rows(1, num_experts, dtype, device)[0] if has_bias else None
    arrivals = torch.zeros(1, dtype=torch.int32, device=device)
    norm = Norm(residual, norm_weight, 1e-6)
    routed = route_few(x, norm, weight, bias, RoutingRules(top_k, over_chosen=False), arrivals)
    assert torch.equal(routed.sums, x + residual)
    normed = rms_norm_torch(x + residual, norm_weight, 1e-6)
    # A value near the middle of two numbers may round either way.
    torch.testing.assert_close(routed.normed, normed, rtol=torch.finfo(dtype).eps, atol=1e-6)
    wanted = Router(weight, bias, RoutingRules(top_k, over_chosen=False))(routed.normed)
    assert torch.equal(routed.routing.ids, wanted.ids)
    torch.testing.assert_close(routed.routing.weights, wanted.weights, rtol=1e-4, atol=1e-6)
    assert not arrivals.any(), "ready for the next tokens"
    assert routed.shares is None
    gate = some_rows(1, hidden, dtype, device)
    shares = route_few(
        *(x, norm, weight, bias, RoutingRules(top_k, over_chosen=False), arrivals),
        shared_gate=gate,
    ).shares
    assert shares is not None
    product = (routed.normed.double() * gate.double()).sum(1)
    torch.testing.assert_close(shares.double(), product.sigmoid(), rtol=1e-5, atol=1e-6)
