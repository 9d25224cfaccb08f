"""Norms in front of sublayers and after them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine.kernels.layer_norm import add_layer_norm, layer_norm
from engine.kernels.linear import Linear
from engine.kernels.norm import add_rms_norm, rms_norm
from engine.models.formats.part import Normed, WeightProduct
from engine.models.formats.reader import WeightReader
from engine.models.layers.activation import LoadedActivation
from engine.models.weights.shares import undivided

Map = Callable[[torch.Tensor], torch.Tensor]


class LoadedNorm(ABC):
    """A norm with its weights."""

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize x [..., d]."""

    def add(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The normed sum and the sum; `residual` may be overwritten by it, None adds nothing."""
        if residual is not None:
            x = residual.add_(x)
        return self(x), x

    def before(self, product: WeightProduct) -> Normed:
        """The product of the normed sum: maps (x, residual) to (product, sum)."""
        return _AddedProduct(self, product.linear)

    def before_activated(
        self, product: WeightProduct, activation: LoadedActivation, down: WeightProduct
    ) -> Normed:
        """What `down` multiplies: the activation of the product of the normed sum, and the sum."""
        return _ActivatedProduct(self, product.linear, activation)


class _AddedProduct(NamedTuple):
    norm: LoadedNorm
    product: Linear

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = self.norm.add(x, residual)
        return self.product(x), residual


class _ActivatedProduct(NamedTuple):
    norm: LoadedNorm
    product: Linear
    activation: LoadedActivation

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = self.norm.add(x, residual)
        return self.activation(self.product(x)), residual


class LoadedRmsNorm(LoadedNorm):
    """An RMSNorm by a weight [d], as of `engine.kernels.norm.rms_norm`."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight, self._eps = weight, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self._eps)

    def add(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            return self(x), x
        return add_rms_norm(x, residual, self.weight, self._eps)

    def before(self, product: WeightProduct) -> Normed:
        return product.normed(self.weight, self._eps)

    def before_activated(
        self, product: WeightProduct, activation: LoadedActivation, down: WeightProduct
    ) -> Normed:
        if not activation.is_gated_silu:
            return super().before_activated(product, activation, down)
        return product.gated(self.weight, self._eps, rounded=down.takes_rounded)


class _LoadedLayerNorm(LoadedNorm):
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> None:
        self.weight, self._bias, self._eps = weight, bias, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, self.weight, self._bias, self._eps)

    def add(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            return self(x), x
        return add_layer_norm(x, residual, self.weight, self._bias, self._eps)


class _NoNorm(LoadedNorm):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


class _Input(LoadedNorm):
    """Takes x as the product's input, and leaves the stream alone."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def add(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert residual is not None
        return x, residual


class NormSpec(ABC):
    """The description of a norm."""

    @abstractmethod
    def load(self, reader: WeightReader, width: int, prefix: str = "") -> LoadedNorm:
        """Read its weights [width], whose names begin with `prefix`, a name with a dot."""


@dataclass(frozen=True)
class RmsNorm(NormSpec):
    """x / sqrt(mean(x²) + eps) * weight, rounded to x's dtype before the weight multiplies."""

    name: str
    eps: float

    def load(self, reader: WeightReader, width: int, prefix: str = "") -> LoadedNorm:
        return LoadedRmsNorm(self._weight(reader, width, prefix), self.eps)

    def _weight(self, reader: WeightReader, width: int, prefix: str) -> torch.Tensor:
        return reader.tensor(f"{prefix}{self.name}.weight", undivided(width))


@dataclass(frozen=True)
class WideNorm(RmsNorm):
    """x / sqrt(mean(x²) + eps) * weight, in float32 and rounded once, as Gemma 4's."""

    def load(self, reader: WeightReader, width: int, prefix: str = "") -> LoadedRmsNorm:
        weight = self._weight(reader, width, prefix)
        return LoadedRmsNorm(reader.derived(weight.float, weight), self.eps)


@dataclass(frozen=True)
class RmsNormPlusOne(RmsNorm):
    """x / sqrt(mean(x²) + eps) * (1 + weight), in float32 and rounded once, as Gemma's."""

    def load(self, reader: WeightReader, width: int, prefix: str = "") -> LoadedRmsNorm:
        weight = self._weight(reader, width, prefix)
        return LoadedRmsNorm(reader.derived(lambda: 1.0 + weight.float(), weight), self.eps)


@dataclass(frozen=True)
class LayerNorm(NormSpec):
    """(x - mean) / sqrt(variance + eps) * weight + bias."""

    name: str
    eps: float
    has_bias: bool = False

    def load(self, reader: WeightReader, width: int, prefix: str = "") -> LoadedNorm:
        share, name = undivided(width), f"{prefix}{self.name}"
        bias = reader.tensor(f"{name}.bias", share) if self.has_bias else None
        return _LoadedLayerNorm(reader.tensor(f"{name}.weight", share), bias, self.eps)


@dataclass(frozen=True)
class NoNorm(NormSpec):
    """The stream as it is."""

    def load(self, reader: WeightReader, width: int, prefix: str = "") -> LoadedNorm:
        return _NoNorm()


NO_NORM = NoNorm()


@dataclass(frozen=True)
class OwnInput(NormSpec):
    """No norm of the stream, which is left alone: x is the sublayer's input."""

    def load(self, reader: WeightReader, width: int, prefix: str = "") -> LoadedNorm:
        return _Input()
