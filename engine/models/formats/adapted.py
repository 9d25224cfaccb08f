"""Products beside which tokens may have adapters; the base's product is left as it is.

Where no token of a step has an adapter, they are the base's functions. Elsewhere what those fuse
after a product (a gate, a rounding) comes after what adapters add, with the same roundings, so that
tokens without an adapter keep their bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from engine.adapters.product import ProductStacks
from engine.kernels.activation import silu_and_mul, silu_and_mul_fp8
from engine.kernels.fp8 import Fp8Rows
from engine.kernels.linear import Linear
from engine.kernels.lora.delta import add_delta
from engine.kernels.lora.embedding import add_embedding_delta
from engine.kernels.lora.groups import ActiveAdapters
from engine.kernels.lora.shrink import InputNorm
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
        self.linear = AdaptedLinear(base.linear, adapters, active).__call__
        self.takes_rounded = base.takes_rounded

    def normed(self, norm: torch.Tensor, eps: float) -> Normed:
        base, own = self._base.normed(norm, eps), InputNorm(norm, eps)
        return _AdaptedNormed(base, own, self._adapters, self._active)

    def gated(self, norm: torch.Tensor, eps: float, *, rounded: bool) -> Normed:
        base = self._base.gated(norm, eps, rounded=rounded)
        return _AdaptedGated(base, self.normed(norm, eps), self, self._active, rounded)

    def takes_lone(self, x: torch.Tensor) -> bool:
        return self._base.takes_lone(x)

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
        is_rounded = isinstance(x, RoundedBeside)
        out = self.base(x.rounded if is_rounded else x)
        add_delta(out, x.plain if is_rounded else x, self.adapters.stacks, groups)
        return out


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
    base: Normed
    norm: InputNorm
    adapters: ProductStacks
    active: ActiveAdapters

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, residual = self.base(x, residual)
        groups = self.active.groups
        if groups is not None:
            add_delta(out, residual, self.adapters.stacks, groups, self.norm)
        return out, residual


class _AdaptedGated(NamedTuple):
    """A gated product.

    Attributes:
        base: product and gate. normed: the product alone, with what adapters add.
        rounded: the next product takes rounded rows.
    """

    base: Normed
    normed: Normed
    product: AdaptedProduct
    active: ActiveAdapters
    rounded: bool

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor | Fp8Rows | RoundedBeside, torch.Tensor]:
        if self.active.groups is None:
            return self.base(x, residual)
        is_lone = self.product.takes_lone(x)
        gate_up, residual = self.normed(x, residual)
        plain = silu_and_mul(gate_up)
        if not self.rounded or is_lone:  # the next product rounds a lone row itself
            return plain, residual
        return RoundedBeside(silu_and_mul_fp8(gate_up), plain), residual
