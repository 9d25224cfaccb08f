"""Experts by their definition, in float64, and bounds of what rounding may do to them."""

from __future__ import annotations

import torch

from engine.kernels.experts.gates import ALPHA, GELU_TANH, LIMIT, RELU2, SILU, num_products
from engine.kernels.experts.products import DenseExpertProduct, ExpertWeights


def random_weights(
    num_experts: int,
    hidden: int,
    inner: int,
    dtype: torch.dtype,
    device: str,
    *,
    has_bias: bool = False,
    gate: str = SILU,
) -> ExpertWeights:
    def some(*shape: int) -> torch.Tensor:
        scale: float = shape[-1] ** -0.5
        return (scale * torch.randn(shape, device=device)).to(dtype)

    return ExpertWeights(
        DenseExpertProduct(some(num_experts, num_products(gate) * inner, hidden)),
        DenseExpertProduct(some(num_experts, hidden, inner)),
        some(num_experts, num_products(gate) * inner) if has_bias else None,
        some(num_experts, hidden) if has_bias else None,
        gate,
    )


def joined(products: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == RELU2:
        return products.clamp(min=0) ** 2
    gate, up = products.chunk(2, dim=-1)
    if kind == GELU_TANH:
        cube = gate + 0.044715 * gate**3
        return 0.5 * gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * cube)) * up
    if kind == SILU:
        return gate * gate.sigmoid() * up
    gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
    return (up + 1) * gate * (ALPHA * gate).sigmoid()


def experts_reference(
    x: torch.Tensor,
    ids: torch.Tensor,
    shares: torch.Tensor,
    weights: ExpertWeights,
    base: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of each token's experts in float64, and that of its terms' absolute values.

    The second bounds errors: a joined feature h that is off by e |h| moves the sum by no more than
    e times the sum of |share| |down| |h|.
    """
    assert isinstance(weights.gate_up, DenseExpertProduct)
    assert isinstance(weights.down, DenseExpertProduct)
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    size = torch.zeros_like(out)
    for expert in range(len(weights.gate_up.values)):
        tokens, ranks = (ids == expert).nonzero(as_tuple=True)
        gate_up = x[tokens].double() @ weights.gate_up.values[expert].double().T
        if weights.gate_up_bias is not None:
            gate_up += weights.gate_up_bias[expert].double()
        inner = joined(gate_up, weights.gate)
        down = weights.down.values[expert].double()
        product, terms = inner @ down.T, inner.abs() @ down.abs().T
        if weights.down_bias is not None:
            product += weights.down_bias[expert].double()
        share = shares[tokens, ranks, None].double()
        out.index_add_(0, tokens, share * product)
        size.index_add_(0, tokens, share * (terms + product.abs()))
    return (out if base is None else out + base.double()), size


def assert_is_sum(
    got: torch.Tensor,
    x: torch.Tensor,
    ids: torch.Tensor,
    shares: torch.Tensor,
    weights: ExpertWeights,
    base: torch.Tensor | None = None,
) -> None:
    """Check a sum of experts against float64.

    The joined features are rounded once to the dtype, each expert's product once, the sum once.
    Before they are joined, gate and up carry float32's error of a sum of `hidden` products, far
    above a unit where they nearly cancel: a few hundred units of float32 are allowed.
    """
    wanted, size = experts_reference(x, ids, shares, weights, base)
    unit = torch.finfo(x.dtype).eps / 2
    bound = 2 * unit * size + 512 * torch.finfo(torch.float32).eps * (1 + size)
    error = (got.double() - wanted).abs()
    assert (error <= bound + unit * wanted.abs()).all(), float((error / bound).max())
