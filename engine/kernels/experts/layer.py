"""The experts of a layer after its norm, and the shared expert that all tokens take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.activation import silu_and_mul
from engine.kernels.experts.few import SharedFew, down_few, gate_up_few
from engine.kernels.experts.few_router import route_few
from engine.kernels.experts.gates import join_torch
from engine.kernels.experts.groups import group_pairs
from engine.kernels.experts.products import DenseExpertProduct, ExpertWeights, Rounded
from engine.kernels.experts.routing import Routing, RoutingRules, choose_experts
from engine.kernels.experts.shared_gate import SharedGate
from engine.kernels.experts.sums import weighted_sums
from engine.kernels.invariant.product import in_blocks
from engine.kernels.linear import Linear
from engine.kernels.norm import add_rms_norm
from engine.kernels.skinny import NUM_ROWS, Norm

_Compute = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Maps rows and what is added to them to the experts' sums."""
_Experts = Callable[[torch.Tensor, Routing, ExpertWeights, torch.Tensor | None], torch.Tensor]


class Router(NamedTuple):
    """The product that chooses experts: weight [experts, hidden], bias [experts], and its rules.

    Attributes:
        correction: as of `choose_experts`.
        invariant: the product on a GPU, float32, where a row's bits may not depend on the number
            of rows; on a CPU it says that.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    rules: RoutingRules
    correction: torch.Tensor | None = None
    invariant: Linear | None = None

    def __call__(self, x: torch.Tensor) -> Routing:
        """Choose experts for x [T, hidden], from logits that are never rounded to its dtype."""
        if self.invariant is not None and x.is_cuda:
            logits = self.invariant(x)
        elif x.is_cuda and x.dtype != torch.float32:
            logits = torch.mm(x, self.weight.t(), out_dtype=torch.float32)
        else:
            multiply = partial(F.linear, weight=self.weight.float())
            x = x.float()
            logits = multiply(x) if self.invariant is None else in_blocks(x, multiply)
        if self.bias is not None:
            logits += self.bias
        return choose_experts(logits, self.rules, self.correction)


class SharedExpert(NamedTuple):
    """The expert that every token takes, gated if it has a gate.

    Attributes:
        gate: multiplies the output.
        activation: of what `gate_up` makes.
        few: the same weights for kernels that take it beside the chosen experts; None where they
            cannot, or where the activation is another than theirs.
    """

    gate_up: Linear
    down: Linear
    gate: SharedGate | None
    activation: Callable[[torch.Tensor], torch.Tensor] = silu_and_mul
    few: SharedFew | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute its output [T, hidden] of x [T, hidden]."""
        out = self.down(self.activation(self.gate_up(x)))
        return out if self.gate is None else self.gate(x, out)


class Latent(NamedTuple):
    """Products that compress what experts read, and widen what they make (LatentMoE)."""

    compress: Linear
    widen: Linear


class Experts:
    """The MLP of a layer with experts: maps (x, residual) to (output, x + residual).

    Args:
        norm_weight: [hidden], of the RMSNorm in front.
        router, shared: they have products that do not depend on the number of rows, or not, as
            `invariant` says of all else.
        latent: None where experts read and make the stream's width.
        note: is called with the ids and weights of each step's choices.
    """

    def __init__(
        self,
        norm_weight: torch.Tensor,
        eps: float,
        router: Router,
        weights: ExpertWeights,
        shared: SharedExpert | None,
        latent: Latent | None = None,
        *,
        invariant: bool = False,
        note: Callable[[torch.Tensor, torch.Tensor], None] | None = None,
    ) -> None:
        self._norm_weight, self._eps = norm_weight, eps
        self._router, self._weights, self._shared = router, weights, shared
        self._latent, self._invariant, self._note = latent, invariant, note
        self._beside = None if latent or shared is None else weights.beside(shared.few)
        self._arrivals = torch.zeros(1, dtype=torch.int32, device=norm_weight.device)

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add, normalize, choose, multiply; `residual` may be overwritten by the sum."""
        if x.is_cuda and len(x) in NUM_ROWS and not self._invariant:
            return self._few(x, residual)
        x, residual = add_rms_norm(x, residual, self._norm_weight, self._eps)
        if x.is_cuda:
            return self._of_normed(x, experts_triton), residual
        return self._of_normed(x, experts_in_blocks if self._invariant else experts_torch), residual

    def _of_normed(self, x: torch.Tensor, compute: _Experts) -> torch.Tensor:
        routing = self._router(x)
        if self._note is not None:
            self._note(*routing)
        return self._sum(x, lambda x, base: compute(x, routing, self._weights, base))

    def _few(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, router, beside = self._weights, self._router, self._beside
        rounded = None if self._latent else weights.gate_up.room(len(x))
        routing, normed, sums, shares = route_few(
            x,
            Norm(residual, self._norm_weight, self._eps),
            router.weight,
            router.bias,
            router.rules,
            self._arrivals,
            rounded,
            router.correction,
            beside.gate if beside else None,
        )
        if self._note is not None:
            self._note(*routing)
        if beside is not None:
            return experts_few_beside(normed, routing, weights, beside, shares), sums
        out = self._sum(normed, lambda x, base: experts_few(x, routing, weights, base, rounded))
        return out, sums

    def _sum(self, x: torch.Tensor, compute: _Compute) -> torch.Tensor:
        """What the experts make of normed rows x, plus the shared expert's output."""
        base = self._shared(x) if self._shared else None
        if self._latent is None:
            return compute(x, base)
        out = self._latent.widen(compute(self._latent.compress(x), None))
        return out if base is None else out.add_(base)


def experts_torch(
    x: torch.Tensor, routing: Routing, weights: ExpertWeights, base: torch.Tensor | None
) -> torch.Tensor:
    """Compute the weighted sums of each token's experts, plus `base`, in plain torch.

    Args:
        x, base: [T, hidden].
    """
    return _experts(x, routing, weights, base, lambda rows, compute: compute(rows))


def experts_in_blocks(
    x: torch.Tensor, routing: Routing, weights: ExpertWeights, base: torch.Tensor | None
) -> torch.Tensor:
    """Compute `experts_torch`, each row's bits its own."""
    return _experts(x, routing, weights, base, in_blocks)


def _experts(
    x: torch.Tensor,
    routing: Routing,
    weights: ExpertWeights,
    base: torch.Tensor | None,
    by: Callable[[torch.Tensor, Linear], torch.Tensor],
) -> torch.Tensor:
    groups = group_pairs(routing.ids, weights.gate_up.shape[0])
    starts, order = groups.starts.tolist(), groups.order.long()
    deltas = weights.deltas(routing.ids, groups.order)

    def by_expert(rows: torch.Tensor, compute: Callable[[int, torch.Tensor], torch.Tensor]) -> Any:
        """Compute rows by place, those of each expert together."""
        return torch.cat(
            [
                by(rows[begin:end], partial(compute, expert))
                for expert, (begin, end) in enumerate(pairwise(starts))
                if begin < end
            ]
        )

    def gate_up(expert: int, rows: torch.Tensor) -> torch.Tensor:
        return weights.gate_up.linear(expert, rows, weights.gate_up_bias)

    def joined(expert: int, rows: torch.Tensor) -> torch.Tensor:
        return join_torch(rows, weights.gate).to(x.dtype)

    def down(expert: int, rows: torch.Tensor) -> torch.Tensor:
        return weights.down.linear(expert, rows, weights.down_bias).float()

    both = by_expert(x[order // routing.ids.shape[1]], gate_up)
    if deltas is not None:
        both += deltas.of_gate_up(x)
    inner = by_expert(both, joined)
    products = torch.empty((len(order), x.shape[1]), dtype=torch.float32, device=x.device)
    products[order] = by_expert(inner, down)
    if deltas is not None:
        deltas.add_down(products, inner)
    terms = products.view(*routing.ids.shape, -1) * routing.weights[..., None]
    out = terms.sum(1)
    return (out if base is None else out + base).to(x.dtype)


def experts(
    x: torch.Tensor, routing: Routing, weights: ExpertWeights, *, invariant: bool = False
) -> torch.Tensor:
    """Compute `experts_torch`, or the kernels for as many tokens, without anything added.

    Args:
        invariant: a row's bits may not depend on the number of rows.
    """
    if not x.is_cuda:
        return (experts_in_blocks if invariant else experts_torch)(x, routing, weights, None)
    few = len(x) in NUM_ROWS and not invariant
    return (experts_few if few else experts_triton)(x, routing, weights, None)


def experts_few(
    x: torch.Tensor,
    routing: Routing,
    weights: ExpertWeights,
    base: torch.Tensor | None,
    rounded: Rounded | None = None,
) -> torch.Tensor:
    """Compute `experts_torch` in the kernels for a few tokens.

    Args:
        rounded: x in float8, where it was rounded already.
    """
    first, second, deltas = weights.gate_up, weights.down, weights.deltas(routing.ids)
    delta = None if deltas is None else deltas.of_gate_up(x)
    inner = first.gate_up_few(x, routing.ids, weights.gate_up_bias, weights.gate, rounded, delta)
    if deltas is not None:
        base = deltas.with_down(inner, routing, base)
    return second.down_few(inner, routing, weights.down_bias, base)


def experts_few_beside(
    x: torch.Tensor,
    routing: Routing,
    weights: ExpertWeights,
    shared: SharedFew,
    shares: torch.Tensor | None,
) -> torch.Tensor:
    """Compute `experts_few` and what is made of x by the expert that all tokens take.

    Args:
        shared: as `weights.beside` gave it.
        shares: float32 [T], that expert's; None is 1.
    """
    first, second = weights.gate_up, weights.down
    assert isinstance(first, DenseExpertProduct)
    assert isinstance(second, DenseExpertProduct)
    inner = gate_up_few(x, routing.ids, first.values, None, weights.gate, shared=shared.gate_up)
    return down_few(inner, routing, second.values, None, None, shared=shared.down, shares=shares)


def experts_triton(
    x: torch.Tensor, routing: Routing, weights: ExpertWeights, base: torch.Tensor | None
) -> torch.Tensor:
    """Compute `experts_torch` in the kernels for many tokens."""
    ids, groups = routing.ids, group_pairs(routing.ids, weights.gate_up.shape[0])
    deltas = weights.deltas(ids, groups.order)
    delta = None if deltas is None else deltas.of_gate_up(x)
    inner = weights.gate_up.grouped(x, ids, weights.gate_up_bias, groups, weights.gate, delta)
    products = weights.down.grouped(inner, ids, weights.down_bias, groups, None)
    if deltas is not None:
        deltas.add_down(products, inner)
    return weighted_sums(products, routing, base)
