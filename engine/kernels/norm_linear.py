"""The two products of a decoder layer that follow a residual addition and an RMSNorm."""

from __future__ import annotations

from typing import Protocol

import torch

from engine.kernels.activation import silu_and_mul, silu_and_mul_fp8
from engine.kernels.fp8 import Fp8Rows
from engine.kernels.fp8_linear import Fp8Linear
from engine.kernels.linear import LaidOut
from engine.kernels.norm import add_rms_norm, rms_norm, rms_norm_fp8
from engine.kernels.skinny import Norm, is_skinny, skinny_linear, takes_norm


class LoneLinear(Protocol):
    """A product that can take the norm and the gate of a lone row along."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [T, in]."""
        ...

    def takes_lone(self, x: torch.Tensor) -> bool:
        """Whether `lone` multiplies x [T, in]."""
        ...

    def lone(
        self, x: torch.Tensor, norm: Norm | None, *, gated: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The product of a lone row's norm, joined if gated, and the row's sum."""
        ...

    def refresh(self) -> None:
        """Take over a weight that was written in place."""
        ...


class NormedProduct:
    """Maps (x, residual) to (product of the normed sum with a weight, the sum).

    Args:
        norm_weight: [in_features].
        weight: [out_features, in_features]. bias: [out_features].
        gated: the product's halves are a gate and values, joined as silu(gate) * values.
    """

    def __init__(
        self,
        norm_weight: torch.Tensor,
        eps: float,
        weight: LaidOut,
        bias: torch.Tensor | None,
        *,
        gated: bool = False,
    ) -> None:
        self._norm_weight = norm_weight
        self._eps = eps
        self._weight = weight.plain() if weight.is_narrow_on_cuda else None
        self._bias = bias
        self._gated = gated
        self._product = weight.linear(bias)

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add, normalize, multiply; `residual` may be overwritten by the sum, None adds nothing."""
        weight = self._weight
        if weight is not None and is_skinny(x):
            return self._skinny(x, residual, weight)
        x, residual = normed_sum(x, residual, self._norm_weight, self._eps)
        out = self._product(x)
        return (silu_and_mul(out) if self._gated else out), residual

    def _skinny(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if takes_norm(x):
            norm = Norm(residual, self._norm_weight, self._eps)
            return skinny_linear(x, weight, self._bias, norm=norm, gated=self._gated)
        x, residual = normed_sum(x, residual, self._norm_weight, self._eps)
        return skinny_linear(x, weight, self._bias, gated=self._gated)[0], residual


class Fp8NormedProduct:
    """A `NormedProduct` with a float8 weight.

    Args:
        norm_weight: [in_features], as of `rms_norm`.
    """

    def __init__(self, norm_weight: torch.Tensor, eps: float, product: Fp8Linear) -> None:
        self._norm_weight = norm_weight
        self._eps = eps
        self._product = product

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add, normalize, quantize, multiply; arguments as those of `NormedProduct`."""
        if self._product.takes_lone(x):
            return self._product.lone(x, Norm(residual, self._norm_weight, self._eps))
        rows = rms_norm_fp8(x, self._norm_weight, self._eps, residual)
        return self._product(rows), x if residual is None else residual

    def gated(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor | Fp8Rows, torch.Tensor]:
        """Compute silu(first half) * second half of the product, a lone row's not yet rounded."""
        if self._product.takes_lone(x):
            norm = Norm(residual, self._norm_weight, self._eps)
            return self._product.lone(x, norm, gated=True)
        gate_up, residual = self(x, residual)
        return silu_and_mul_fp8(gate_up), residual


class NormedLinear:
    """A `NormedProduct` whose product is a function of the normed sum.

    Args:
        norm_weight: [in_features].
        product: [T, in_features] to [T, out_features].
    """

    def __init__(
        self, norm_weight: torch.Tensor, eps: float, product: LoneLinear, *, gated: bool
    ) -> None:
        self._norm_weight, self._eps = norm_weight, eps
        self._product, self._gated = product, gated

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add, normalize, multiply; arguments as those of `NormedProduct`."""
        product = self._product
        if product.takes_lone(x):
            norm = Norm(residual, self._norm_weight, self._eps)
            return product.lone(x, norm, gated=self._gated)
        x, residual = normed_sum(x, residual, self._norm_weight, self._eps)
        out = self._product(x)
        return (silu_and_mul(out) if self._gated else out), residual


def normed_sum(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the normed sum of x and residual, and the sum, which may overwrite `residual`."""
    if residual is None:
        return rms_norm(x, weight, eps), x
    return add_rms_norm(x, residual, weight, eps)
