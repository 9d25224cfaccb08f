"""Activations between the two products of an MLP."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.activation import silu_and_mul


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
            return F.silu(x)
        if self.kind == "relu2":
            return F.relu(x).square_()
        return F.gelu(x, approximate="tanh" if self.kind == "gelu_tanh" else "none")


GATED_SILU = Activation()
