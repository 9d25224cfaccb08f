"""Float8 experts against float64: inputs rounded by numpy, products in float64.

Sums of float32 products are off by 2^-18 of their terms' absolute values at most; those in a GPU's
tensor cores, which keep about 14 bits, by 2^-12. The result is rounded once to its type.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.kernels.experts.few_fp8 import down_few_fp8, gate_up_few_fp8
from engine.kernels.experts.few_router import route_few
from engine.kernels.experts.gates import GPT_OSS, RELU2, SILU, num_products
from engine.kernels.experts.grouped import fp8_tile_of, grouped_linear
from engine.kernels.experts.groups import group_pairs
from engine.kernels.experts.layer import experts_few, experts_torch, experts_triton
from engine.kernels.experts.products import ExpertWeights, Fp8ExpertProduct
from engine.kernels.experts.routing import Routing, RoutingRules, choose_experts
from engine.kernels.experts.sums import weighted_sums
from engine.kernels.skinny import Norm
from sampling.device.triton_support import INTERPRETED
from tests.engine.kernels.experts.quantized import fp8_experts
from tests.engine.kernels.experts.reference import joined
from tests.engine.kernels.where import DEVICES

SIZES = [(4, 2, 32, 48), (7, 3, 208, 136)]
"""Experts, how many a token takes, hidden and inner size."""
SPANS = pytest.mark.parametrize("by_spans", [False, True])
NARROW = torch.float16 if INTERPRETED else torch.bfloat16  # to which the interpreter truncates
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, NARROW])
EXACT, TENSOR_CORES = 2.0**-18, 2.0**-12


def wide(weights: Fp8ExpertProduct) -> torch.Tensor:
    """The weights' values in float64."""
    scales = weights.scales
    if scales.dim() == 2:
        scales = scales[..., None]
    else:
        scales = scales.repeat_interleave(128, 2)[..., : weights.values.shape[2]]
    return weights.values.double() * scales.double()


def rounded(x: torch.Tensor, *, by_spans: bool) -> torch.Tensor:
    """Rows rounded to e4m3, a scale a row or for each 128 numbers; by numpy, in float64."""
    parts = torch.split(x.float().cpu(), 128 if by_spans else x.shape[1], dim=1)
    return torch.cat([_rounded(part.numpy()) for part in parts], 1).to(x.device)


def _rounded(x: np.ndarray) -> torch.Tensor:
    scale = np.maximum(np.abs(x).max(1, keepdims=True), np.float32(1e-12)) / np.float32(448)
    scaled = (x / scale).astype(np.float64)
    step = 2.0 ** (np.maximum(np.floor(np.log2(np.maximum(np.abs(scaled), 1e-30))), -6.0) - 3.0)
    return torch.from_numpy(np.round(scaled / step) * step * scale.astype(np.float64))


def some_routing(num_tokens: int, num_experts: int, top_k: int, device: str) -> Routing:
    logits = torch.randn(num_tokens, num_experts, device=device)
    logits[:, 1] = -torch.inf  # an expert that no token takes
    return choose_experts(logits, RoutingRules(top_k, over_chosen=True))


def some_bias(num_experts: int, channels: int, device: str, gate: str) -> torch.Tensor | None:
    return torch.randn(num_experts, channels, device=device) if gate == GPT_OSS else None


def assert_is_joined(
    got: torch.Tensor,
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: Fp8ExpertProduct,
    bias: torch.Tensor | None,
    gate: str,
    slack: float,
) -> None:
    """Check joined products [P, inner] of rounded inputs x [P, hidden] and their experts [P]."""
    own = wide(weights)[experts]
    both = torch.einsum("pk,pnk->pn", x, own)
    size = torch.einsum("pk,pnk->pn", x.abs(), own.abs())
    if bias is not None:
        both, size = both + bias[experts].double(), size + bias[experts].double().abs()
    wanted = joined(both, gate)
    if gate == RELU2:  # grows by twice its argument
        bound = slack * (2 * both.abs() + slack * size) * size
    else:
        (gates, ups), sizes = both.chunk(2, 1), size.chunk(2, 1)
        # Neither gate grows faster than 1.2 times its argument, nor faster than up + 1.
        bound = slack * (1.2 * (1 + ups.abs()) * sizes[0] + (1 + gates.abs()) * sizes[1])
    bound += torch.finfo(got.dtype).eps / 2 * wanted.abs() + 1e-6
    assert ((got.double() - wanted).abs() <= bound).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gate", [SILU, GPT_OSS, RELU2])
@pytest.mark.parametrize("num_tokens", [1, 4])
@pytest.mark.parametrize("sizes", SIZES)
@DTYPES
@SPANS
def test_gate_up_of_few(
    sizes: tuple[int, int, int, int],
    num_tokens: int,
    gate: str,
    dtype: torch.dtype,
    device: str,
    *,
    by_spans: bool,
) -> None:
    num_experts, top_k, hidden, inner = sizes
    weights = fp8_experts(
        num_experts, num_products(gate) * inner, hidden, device, by_spans=by_spans
    )
    bias = some_bias(num_experts, 2 * inner, device, gate)
    x = torch.randn(num_tokens, hidden, device=device).to(dtype)
    ids = some_routing(num_tokens, num_experts, top_k, device).ids
    got = gate_up_few_fp8(weights.rounded(x), ids, weights, bias, gate, dtype)
    inputs = rounded(x, by_spans=by_spans).repeat_interleave(top_k, 0)
    assert_is_joined(got, inputs, ids.flatten().long(), weights, bias, gate, EXACT)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_tokens", [1, 2, 4])
@pytest.mark.parametrize("sizes", SIZES)
@DTYPES
@SPANS
def test_down_of_few(
    sizes: tuple[int, int, int, int],
    num_tokens: int,
    dtype: torch.dtype,
    device: str,
    *,
    by_spans: bool,
) -> None:
    num_experts, top_k, hidden, inner = sizes
    weights = fp8_experts(num_experts, hidden, inner, device, by_spans=by_spans)
    x = torch.randn(num_tokens * top_k, inner, device=device).to(dtype)
    bias = torch.randn(num_experts, hidden, device=device) if num_tokens == 2 else None
    base = torch.randn(num_tokens, hidden, device=device).to(dtype) if num_tokens > 1 else None
    routing = some_routing(num_tokens, num_experts, top_k, device)
    got = down_few_fp8(weights.rounded(x), routing, weights, bias, base, dtype)
    assert_is_sum(got, x, routing, weights, bias, base, EXACT)


def assert_is_sum(
    got: torch.Tensor,
    x: torch.Tensor,
    routing: Routing,
    weights: Fp8ExpertProduct,
    bias: torch.Tensor | None,
    base: torch.Tensor | None,
    slack: float,
) -> None:
    """Check sums [T, hidden] of the products of x [T * k, inner]."""
    experts, shares = routing.ids.flatten().long(), routing.weights.flatten()[:, None].double()
    own = wide(weights)[experts]
    inputs = rounded(x, by_spans=weights.num_spans > 0)
    terms = torch.einsum("pk,pnk->pn", inputs, own)
    size = torch.einsum("pk,pnk->pn", inputs.abs(), own.abs())
    if bias is not None:
        terms, size = terms + bias[experts].double(), size + bias[experts].double().abs()
    shape = (*routing.ids.shape, -1)
    wanted, sizes = (shares * terms).view(shape).sum(1), (shares * size).view(shape).sum(1)
    if base is not None:
        wanted, sizes = wanted + base.double(), sizes + base.double().abs()
    unit = torch.finfo(got.dtype).eps / 2
    rounded_terms = unit * (shares * terms).abs().view(shape).sum(1)  # one by one, of many tokens
    bound = slack * sizes + rounded_terms + unit * wanted.abs() + 1e-6
    assert ((got.double() - wanted).abs() <= bound).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gate", [SILU, GPT_OSS, RELU2])
@pytest.mark.parametrize("num_tokens", [3, 20])
@pytest.mark.parametrize("sizes", SIZES)
@DTYPES
@SPANS
def test_many(
    sizes: tuple[int, int, int, int],
    num_tokens: int,
    gate: str,
    dtype: torch.dtype,
    device: str,
    *,
    by_spans: bool,
) -> None:
    num_experts, top_k, hidden, inner = sizes
    slack = TENSOR_CORES if device == "cuda" else EXACT
    routing = some_routing(num_tokens, num_experts, top_k, device)
    groups = group_pairs(routing.ids, num_experts)
    order = groups.order.long()
    weights = fp8_experts(
        num_experts, num_products(gate) * inner, hidden, device, by_spans=by_spans
    )
    bias = some_bias(num_experts, 2 * inner, device, gate)
    x = torch.randn(num_tokens, hidden, device=device).to(dtype)
    got = grouped_linear(weights.rounded(x), weights, bias, groups, top_k, gate, dtype=dtype)
    experts = routing.ids.flatten().long()[order]
    inputs = rounded(x, by_spans=by_spans)[order // top_k]
    assert_is_joined(got, inputs, experts, weights, bias, gate, slack)

    down = fp8_experts(num_experts, hidden, inner, device, by_spans=by_spans)
    down_bias = some_bias(num_experts, hidden, device, gate)
    by_place = torch.randn(num_tokens * top_k, inner, device=device).to(dtype)
    rows = down.rounded(by_place)
    products = grouped_linear(rows, down, down_bias, groups, top_k, None, dtype=dtype)
    by_pair = torch.empty_like(by_place)
    by_pair[order] = by_place
    total = weighted_sums(products, routing, None)
    assert_is_sum(total, by_pair, routing, down, down_bias, None, slack)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inputs", ["by token", "by span", "by scale"])
def test_paths_agree(device: str, inputs: str) -> None:
    """An input near the middle of two float8 numbers may round either way, and moves its row."""
    by_spans = inputs == "by span"
    gate_up = fp8_experts(7, 2 * 136, 208, device, by_spans=by_spans)
    down = fp8_experts(7, 208, 136, device, by_spans=by_spans)
    if inputs == "by scale":  # some inputs are beyond a scale's range
        gate_up, down = (
            each._replace(input_scales=(1 + torch.rand(7, device=device)) / 200)
            for each in (gate_up, down)
        )
    weights = ExpertWeights(gate_up, down, None, None, SILU)
    x, base = torch.randn(2, 2, 208, device=device)
    routing = some_routing(2, 7, 3, device)
    wanted = experts_torch(x.cpu(), *_on_cpu(routing, weights), base.cpu())
    for path in (experts_few, experts_triton):
        got = path(x, routing, weights, base).cpu()
        assert (got - wanted).norm() < 0.01 * wanted.norm()
        assert ((got - wanted).abs() < 1e-3 * wanted.abs().mean()).double().mean() > 0.5
        assert torch.equal(got, path(x, routing, weights, base).cpu())


def _moved(weights: Fp8ExpertProduct) -> Fp8ExpertProduct:
    values, scales, inputs = weights
    return Fp8ExpertProduct(values.cpu(), scales.cpu(), None if inputs is None else inputs.cpu())


def _on_cpu(routing: Routing, weights: ExpertWeights) -> tuple[Routing, ExpertWeights]:
    gate_up, down = weights.gate_up, weights.down
    assert isinstance(gate_up, Fp8ExpertProduct)
    assert isinstance(down, Fp8ExpertProduct)
    gate_up, down = _moved(gate_up), _moved(down)
    own = Routing(*(tensor.cpu() for tensor in routing))
    return own, weights._replace(gate_up=gate_up, down=down)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hidden", [72, 208])
@SPANS
def test_the_router_rounds_as_others_do(hidden: int, device: str, *, by_spans: bool) -> None:
    experts = fp8_experts(5, 48, hidden, device, by_spans=by_spans)
    x, residual = torch.randn(2, 2, hidden, device=device)
    room = experts.empty_inputs(2)
    routed = route_few(
        x,
        Norm(residual, torch.rand(hidden, device=device), 1e-6),
        torch.randn(11, hidden, device=device),
        None,
        RoutingRules(3, over_chosen=True),
        torch.zeros(1, dtype=torch.int32, device=device),
        room,
    )
    wanted = experts.rounded(routed.normed)
    assert torch.equal(room.values.view(torch.uint8), wanted.values.view(torch.uint8))
    assert torch.equal(room.scales, wanted.scales)


@SPANS
def test_a_step_is_a_span(*, by_spans: bool) -> None:
    for pairs in (8, 2048, 65536):
        assert fp8_tile_of(pairs, 128, gated=True, by_spans=by_spans).depth == 128
