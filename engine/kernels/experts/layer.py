"""The experts of a layer behind its norm, and the shared expert that all tokens take."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.activation import silu_and_mul
from engine.kernels.experts.few import down_few, gate_up_few
from engine.kernels.experts.few_fp8 import down_few_fp8, gate_up_few_fp8
from engine.kernels.experts.few_int4 import down_few_int4, gate_up_few_int4
from engine.kernels.experts.few_router import route_few
from engine.kernels.experts.gates import join_torch
from engine.kernels.experts.grouped import grouped_linear, weighted_sums
from engine.kernels.experts.grouped_int4 import grouped_int4
from engine.kernels.experts.groups import Groups, group_pairs
from engine.kernels.experts.inputs import ordered_inputs, rounded_inputs
from engine.kernels.experts.routing import Routing, RoutingRules, choose_experts
from engine.kernels.experts.weights import (
    ExpertWeights,
    Fp8Experts,
    Int4Experts,
    Weights,
    expert_linear,
)
from engine.kernels.fp8 import Fp8Rows
from engine.kernels.fp8_linear import Fp8Linear
from engine.kernels.linear import Linear
from engine.kernels.norm import add_rms_norm
from engine.kernels.quantized.fp8_blocks import Fp8Blocks
from engine.kernels.skinny import NUM_ROWS, Norm


class Router(NamedTuple):
    """The product that chooses experts: weight [experts, hidden], bias [experts], and its rules.

    `correction` is as of `choose_experts`.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    rules: RoutingRules
    correction: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> Routing:
        """Choose experts for x [T, hidden], from logits that are never rounded to its dtype."""
        if x.is_cuda and x.dtype != torch.float32:
            logits = torch.mm(x, self.weight.t(), out_dtype=torch.float32)
        else:
            logits = F.linear(x.float(), self.weight.float())
        if self.bias is not None:
            logits += self.bias
        return choose_experts(logits, self.rules, self.correction)


class SharedExpert(NamedTuple):
    """The expert that every token takes, times the sigmoid of a product [1, hidden] if any."""

    gate_up: Linear | Fp8Linear
    down: Linear | Fp8Linear
    scale: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute its output [T, hidden] of x [T, hidden]."""
        out = self.down(silu_and_mul(self.gate_up(x)))
        return out if self.scale is None else F.linear(x, self.scale).sigmoid() * out


class Experts:
    """The MLP of a layer with experts: maps (x, residual) to (output, x + residual).

    Args:
        norm_weight: [hidden], of the RMSNorm in front.
    """

    def __init__(
        self,
        norm_weight: torch.Tensor,
        eps: float,
        router: Router,
        weights: ExpertWeights,
        shared: SharedExpert | None,
    ) -> None:
        self._norm_weight, self._eps = norm_weight, eps
        self._router, self._weights, self._shared = router, weights, shared
        self._arrivals = torch.zeros(1, dtype=torch.int32, device=norm_weight.device)

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add, normalize, choose, multiply; `residual` may be overwritten by the sum."""
        if x.is_cuda and len(x) in NUM_ROWS:
            return self._few(x, residual)
        x, residual = add_rms_norm(x, residual, self._norm_weight, self._eps)
        routing = self._router(x)
        base = self._shared(x) if self._shared else None
        if x.is_cuda:
            return experts_triton(x, routing, self._weights, base), residual
        return experts_torch(x, routing, self._weights, base), residual

    def _few(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, router = self._weights, self._router
        rounded = None
        if isinstance(weights.gate_up, Fp8Experts) and weights.gate_up.input_scales is None:
            rounded = weights.gate_up.empty_inputs(len(x))
        routing, normed, sums = route_few(
            x,
            Norm(residual, self._norm_weight, self._eps),
            router.weight,
            router.bias,
            router.rules,
            self._arrivals,
            rounded,
            router.correction,
        )
        base = self._shared(normed) if self._shared else None
        out = experts_few(normed, routing, weights, base, rounded)
        return out, sums


def experts_torch(
    x: torch.Tensor, routing: Routing, weights: ExpertWeights, base: torch.Tensor | None
) -> torch.Tensor:
    """Compute the weighted sums of each token's experts, plus `base`, in plain torch.

    Args:
        x, base: [T, hidden].
    """
    groups = group_pairs(routing.ids, weights.gate_up.shape[0])
    starts, order = groups.starts.tolist(), groups.order.long()
    products = x.new_empty((len(order), x.shape[1]), dtype=torch.float32)
    for expert, (begin, end) in enumerate(pairwise(starts)):
        if begin == end:
            continue
        pairs = order[begin:end]
        own = x[pairs // routing.ids.shape[1]]
        gate_up = expert_linear(weights.gate_up, expert, own, weights.gate_up_bias)
        gate, up = gate_up.chunk(2, dim=-1)
        inner = join_torch(gate, up, weights.gate).to(x.dtype)
        products[pairs] = expert_linear(weights.down, expert, inner, weights.down_bias).float()
    terms = products.view(*routing.ids.shape, -1) * routing.weights[..., None]
    out = terms.sum(1)
    return (out if base is None else out + base).to(x.dtype)


def experts_few(
    x: torch.Tensor,
    routing: Routing,
    weights: ExpertWeights,
    base: torch.Tensor | None,
    rounded: Fp8Rows | Fp8Blocks | None = None,
) -> torch.Tensor:
    """Compute `experts_torch` in the kernels for a few tokens.

    Args:
        rounded: x in float8, where it was rounded already.
    """
    ids, gate, first, second = routing.ids, weights.gate, weights.gate_up, weights.down
    if isinstance(first, Fp8Experts):
        rows, ids = (rounded, ids) if rounded else rounded_inputs(x, ids, first)
        inner = gate_up_few_fp8(rows, ids, first, weights.gate_up_bias, gate, x.dtype)
    elif isinstance(first, Int4Experts):
        x, ids = ordered_inputs(x, ids, first)
        inner = gate_up_few_int4(x, ids, first, weights.gate_up_bias, gate)
    else:
        inner = gate_up_few(x, ids, first, weights.gate_up_bias, gate)
    bias = weights.down_bias
    if isinstance(second, Fp8Experts):
        rows, _ = rounded_inputs(inner, ids, second)
        return down_few_fp8(rows, routing, second, bias, base, x.dtype)
    if isinstance(second, Int4Experts):
        inner, _ = ordered_inputs(inner, ids, second)
        return down_few_int4(inner, routing, second, bias, base)
    return down_few(inner, routing, second, bias, base)


def experts_triton(
    x: torch.Tensor, routing: Routing, weights: ExpertWeights, base: torch.Tensor | None
) -> torch.Tensor:
    """Compute `experts_torch` in the kernels for many tokens."""
    groups = group_pairs(routing.ids, weights.gate_up.shape[0])
    inner = _grouped(x, routing.ids, weights.gate_up, weights.gate_up_bias, groups, weights.gate)
    products = _grouped(inner, routing.ids, weights.down, weights.down_bias, groups, None)
    return weighted_sums(products, routing, base)


def _grouped(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: Weights,
    bias: torch.Tensor | None,
    groups: Groups,
    gate: str | None,
) -> torch.Tensor:
    pairs = groups.order if gate is None else None
    if isinstance(weights, Int4Experts):
        x, ids = ordered_inputs(x, ids, weights, pairs)
        return grouped_int4(x, weights, bias, groups, ids.shape[1], gate)
    if isinstance(weights, Fp8Experts):
        rows, ids = rounded_inputs(x, ids, weights, pairs)
        return grouped_linear(rows, weights, bias, groups, ids.shape[1], gate, dtype=x.dtype)
    return grouped_linear(x, weights, bias, groups, ids.shape[1], gate)
