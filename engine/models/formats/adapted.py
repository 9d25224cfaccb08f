"""Products beside which tokens may have adapters; the base's product is left as it is.

Where no token of a step has an adapter, they are the base's functions. Elsewhere what those fuse
after a product (a gate, a rounding) comes after what adapters add, with the same roundings, so that
tokens without an adapter keep their bits.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch

from engine.adapters.product import ProductStacks
from engine.kernels.activation import silu_and_mul, silu_and_mul_fp8
from engine.kernels.fp8 import Fp8Rows
from engine.kernels.linear import Linear
from engine.kernels.lora.delta import adapted_gated, adapted_product, add_delta
from engine.kernels.lora.embedding import add_embedding_delta
from engine.kernels.lora.groups import ActiveAdapters
from engine.kernels.lora.lone import is_even, lone_linear
from engine.kernels.lora.shrink import InputNorm
from engine.kernels.norm_linear import normed_sum
from engine.kernels.skinny import Norm, is_skinny, takes_norm
from engine.models.formats.part import Normed, Part, WeightProduct


class RoundedBeside(NamedTuple):
    """Inputs of a product, and beside them as they were before they were rounded."""

    rounded: Fp8Rows
    plain: torch.Tensor


class AdaptedProduct(WeightProduct):
    """A base's product with the adapters of its modules."""

    def __init__(
        self, base: WeightProduct, adapters: ProductStacks, active: ActiveAdapters
    ) -> None:
        self._base, self._adapters, self._active = base, adapters, active
        self._linear = AdaptedLinear(base.linear, adapters, active)
        self._skinny = base.skinny_weight()
        self.linear = self._multiply
        self.takes_rounded = base.takes_rounded

    def _multiply(self, x: Any) -> torch.Tensor:
        if isinstance(x, torch.Tensor) and (lone := self.lone(x, None)) is not None:
            return lone[0]
        return self._linear(x)

    def normed(self, norm: torch.Tensor, eps: float) -> Normed:
        return _AdaptedNormed(self, self._base.normed(norm, eps), InputNorm(norm, eps))

    def gated(self, norm: torch.Tensor, eps: float, *, rounded: bool) -> Normed:
        base = self._base.gated(norm, eps, rounded=rounded)
        normed = _AdaptedNormed(self, self._base.normed(norm, eps), InputNorm(norm, eps))
        return _AdaptedGated(base, normed, rounded)

    def lone(
        self, x: torch.Tensor, norm: Norm | None, *, gated: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The product of a lone row x [1, in] in one launch, and the row's sum.

        Returns:
            None where it is not such a row, or other kernels multiply it.
        """
        groups, handovers, skinny = self._active.groups, self._active.handovers, self._skinny
        if handovers is None or skinny is None or len(x) != 1 or not is_skinny(x):
            return None
        if not is_even(self._adapters.stacks):
            return None
        assert groups is not None
        assert groups.by_token is not None
        handover = handovers.take()
        if handover is None:
            return None
        if norm is not None and not takes_norm(x):
            x, total = normed_sum(x, norm.residual, norm.weight, norm.eps)
            norm = None
        else:
            total = x
        stacks, slots = self._adapters.stacks, groups.by_token
        out, sums = lone_linear(x, *skinny, stacks, slots, handover, norm=norm, gated=gated)
        return out, total if norm is None else sums

    def add_delta(self, out: torch.Tensor, x: torch.Tensor, norm: InputNorm) -> None:
        """Add what adapters make of the norm of x [T, in]."""
        assert self._active.groups is not None
        add_delta(out, x, self._adapters.stacks, self._active.groups, norm)

    @property
    def has_halves(self) -> bool:
        """Whether it is of two modules, a gate and values."""
        return (
            len(self._adapters.bounds) == 3
            and self._adapters.bounds[2] == 2 * self._adapters.bounds[1]
        )

    def joined(self, x: torch.Tensor) -> torch.Tensor:
        """The product of x [T, in], its halves joined."""
        assert self._active.groups is not None
        multiply = partial(self._base.linear, x)
        return adapted_gated(multiply, x, self._adapters.stacks, self._active.groups)

    @property
    def is_adapted(self) -> bool:
        """Whether a token of the forward under way has an adapter."""
        return self._active.groups is not None

    def takes_lone(self, x: torch.Tensor) -> bool:
        return self._base.takes_lone(x)

    def norms_apart(self, x: torch.Tensor) -> bool:
        return self._base.norms_apart(x)

    def part(self) -> Part:
        return self._base.part()

    def refresh(self, part: Part) -> None:
        self._base.refresh(part)


class AdaptedLinear(NamedTuple):
    """A product's function with the adapters of its modules."""

    base: Linear
    adapters: ProductStacks
    active: ActiveAdapters

    def __call__(self, x: Any) -> torch.Tensor:
        """Multiply x [T, in]: a tensor, or what `_AdaptedGated` or the base's gate has made."""
        groups = self.active.groups
        if groups is None:
            return self.base(x)
        stacks = self.adapters.stacks
        if isinstance(x, RoundedBeside):
            own: Any = x.rounded
            return adapted_product(partial(self.base, own), x.plain, stacks, groups)
        return adapted_product(partial(self.base, x), x, stacks, groups)


class AdaptedEmbedding(NamedTuple):
    """The adapters of the token embeddings."""

    adapters: ProductStacks
    active: ActiveAdapters

    def add_to(self, embedded: torch.Tensor, input_ids: torch.Tensor) -> None:
        """Add what they make of ids int32 [T] to embeddings [T, hidden]."""
        groups = self.active.groups
        if groups is not None:
            add_embedding_delta(embedded, input_ids, self.adapters.stacks, groups)


class _AdaptedNormed(NamedTuple):
    product: AdaptedProduct
    base: Normed
    norm: InputNorm

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        product, norm = self.product, self.norm
        if not product.is_adapted:
            return self.base(x, residual)
        lone = product.lone(x, Norm(residual, *norm))
        if lone is not None:
            return lone
        if product.norms_apart(x):
            x, residual = normed_sum(x, residual, *norm)
            return product.linear(x), residual
        out, residual = self.base(x, residual)
        product.add_delta(out, residual, norm)
        return out, residual


class _AdaptedGated(NamedTuple):
    """A gated product.

    Attributes:
        base: product and gate. normed: the product alone, with what adapters add.
        rounded: the next product takes rounded rows.
    """

    base: Normed
    normed: _AdaptedNormed
    rounded: bool

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor | Fp8Rows | RoundedBeside, torch.Tensor]:
        product, norm = self.normed.product, self.normed.norm
        if not product.is_adapted:
            return self.base(x, residual)
        lone = product.lone(x, Norm(residual, *norm), gated=True)
        if lone is not None:
            return lone
        is_rounded = self.rounded and not product.takes_lone(x)  # else the next product rounds it
        if product.norms_apart(x) and product.has_halves and not is_rounded:
            x, residual = normed_sum(x, residual, *norm)
            return product.joined(x), residual
        gate_up, residual = self.normed(x, residual)
        plain = silu_and_mul(gate_up)
        return RoundedBeside(silu_and_mul_fp8(gate_up), plain) if is_rounded else plain, residual
