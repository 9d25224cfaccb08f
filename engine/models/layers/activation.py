"""Activations between the two products of an MLP."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.activation import silu_and_mul
from engine.kernels.invariant.functions import elementwise
from engine.models.formats.reader import WeightReader
from engine.models.weights.shares import undivided

GELU = {"gelu": "none", "gelu_tanh": "tanh"}
"""How torch calls the kinds of gelu."""


class LoadedActivation(Protocol):
    """Maps what the first product makes [T, columns] to what the second multiplies."""

    @property
    def is_gated_silu(self) -> bool:
        """Whether it is the one that kernels fuse with products."""
        ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class Activation(NamedTuple):
    """An activation by name, "silu", "gelu", "gelu_tanh" or "relu2"; gated or not.

    Attributes:
        gate_scale: factor of the gate before the activation.
    """

    kind: str = "silu"
    gated: bool = True
    gate_scale: float = 1.0

    @property
    def is_gated_silu(self) -> bool:
        """Whether it is the one that kernels fuse with products."""
        return self.gated and self.kind == "silu" and self.gate_scale == 1.0

    def load(self, reader: WeightReader, prefix: str) -> LoadedActivation:
        """It has no weights."""
        return self

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute it of x [T, m], gated [T, 2 * m], the gate in the first half → [T, m]."""
        if not self.gated:
            return self._of(x)
        if self.is_gated_silu:
            return silu_and_mul(x.contiguous())
        gate, up = x.chunk(2, dim=-1)
        if self.gate_scale != 1.0:
            gate = gate * self.gate_scale
        return self._of(gate).mul_(up)

    def _of(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "silu":
            return elementwise(F.silu, x)
        if self.kind == "relu2":
            return F.relu(x).square_()
        return elementwise(partial(F.gelu, approximate=GELU[self.kind]), x)


GATED_SILU = Activation()


class Xielu(NamedTuple):
    """The expanded integral of the ELU with learned slopes, without a gate (arXiv 2411.13010).

    Attributes:
        name: of the module in the MLP that has the slopes.
    """

    name: str
    gated: bool = False

    def load(self, reader: WeightReader, prefix: str) -> LoadedActivation:
        """Read the slopes, whose names begin with `prefix`, that of the MLP with a dot."""
        p, n = (
            reader.tensor(f"{prefix}{self.name}.{slope}", undivided(1), dtype=torch.float32)
            for slope in ("alpha_p", "alpha_n")
        )
        beta, eps = (
            reader.scalar(f"{prefix}{self.name}.{name}", dtype=torch.float32)
            for name in ("beta", "eps")
        )
        positive = reader.derived(lambda: F.softplus(p), p)
        negative = reader.derived(lambda: beta + F.softplus(n), beta, n)
        return LoadedXielu(positive, negative, beta, eps)


class LoadedXielu(NamedTuple):
    """p x² + b x of positive x, n (exp(min(x, e)) - 1 - x) + b x of others.

    Attributes:
        positive, negative: p and n, float32 [1]. beta, eps: b and e, float32 of no dimension.
    """

    positive: torch.Tensor
    negative: torch.Tensor
    beta: torch.Tensor
    eps: torch.Tensor

    @property
    def is_gated_silu(self) -> bool:
        """It is another."""
        return False

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute it in float32, and round once."""
        wide = x.float()
        above = self.positive * wide.square()
        below = (elementwise(torch.expm1, torch.minimum(wide, self.eps)) - wide) * self.negative
        return (torch.where(wide > 0, above, below) + self.beta * wide).to(x.dtype)
