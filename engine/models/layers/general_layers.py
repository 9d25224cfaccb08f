"""Layers that are not as Llama's: other norms and activations, sums in other places."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from engine.contracts.attention import LayerAttention
from engine.contracts.heads import Heads, Rotation
from engine.kernels.activation import silu_and_mul
from engine.kernels.layer_norm import add_layer_norm, layer_norm
from engine.kernels.linear import Linear
from engine.kernels.norm import add_rms_norm, rms_norm

Map = Callable[[torch.Tensor], torch.Tensor]


class RmsNorm(NamedTuple):
    """An RMSNorm: weight [d], of the inputs' dtype."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize x [T, d]."""
        return rms_norm(x, self.weight, self.eps)

    def add(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The normed sum and the sum; `residual` may be overwritten by it, None adds nothing."""
        if residual is None:
            return self(x), x
        return add_rms_norm(x, residual, self.weight, self.eps)


class WideRmsNorm(NamedTuple):
    """An RMSNorm that is rounded once, behind its float32 weight [d], as Gemma's is."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize x [..., d]."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)

    def add(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add and norm, as `RmsNorm.add` does."""
        if residual is not None:
            x = residual.add_(x)
        return self(x), x


class LayerNorm(NamedTuple):
    """A LayerNorm: weight [d], bias [d]."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    eps: float

    def add(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add and norm, as `RmsNorm.add` does."""
        if residual is None:
            return layer_norm(x, self.weight, self.bias, self.eps), x
        return add_layer_norm(x, residual, self.weight, self.bias, self.eps)


class NoNorm(NamedTuple):
    """A sum that is not normalized."""

    def add(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add and norm, as `RmsNorm.add` does; the two tensors returned are one."""
        if residual is not None:
            x = residual.add_(x)
        return x, x


AddNorm = RmsNorm | WideRmsNorm | LayerNorm | NoNorm


def norm_heads(
    q_norm: WideRmsNorm, k_norm: WideRmsNorm, q_width: int, kv_width: int, qkv: torch.Tensor
) -> torch.Tensor:
    """Norm every head of queries and keys in a QKV product [T, q_width + 2 * kv_width]."""
    q, k, v = torch.split(qkv, [q_width, kv_width, kv_width], dim=1)
    head_dim = len(q_norm.weight)
    q = q_norm(q.reshape(len(q), -1, head_dim)).flatten(1)
    k = k_norm(k.reshape(len(k), -1, head_dim)).flatten(1)
    return torch.cat([q, k, v], dim=1)


class Activation(NamedTuple):
    """What stands in front of a down product: "silu", "gelu" or "gelu_tanh"; gated or not."""

    kind: str
    gated: bool

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute it of x [T, m], gated [T, 2 * m], the gate in the first half → [T, m]."""
        if not self.gated:
            return self._of(x)
        if self.kind == "silu":
            return silu_and_mul(x.contiguous())
        gate, up = x.chunk(2, dim=-1)
        return self._of(gate).mul_(up)

    def _of(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "silu":
            return F.silu(x)
        return F.gelu(x, approximate="tanh" if self.kind == "gelu_tanh" else "none")


class AddedProduct(NamedTuple):
    """Maps (x, residual) to (product of the normed sum, the sum), as `NormedProduct` does."""

    norm: AddNorm
    product: Linear

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add, normalize, multiply."""
        x, residual = self.norm.add(x, residual)
        return self.product(x), residual


class SequentialBody(NamedTuple):
    """A layer without its QKV product: attention, then the MLP.

    Attributes:
        prepare: what is done with the QKV product before it is turned.
        after_attention, after_mlp: what is done with their outputs before they are added.
    """

    o: Linear
    gate_up: AddedProduct
    activation: Activation
    down: Linear
    heads: Heads
    prepare: Map | None
    after_attention: Map | None
    after_mlp: Map | None

    def __call__(
        self,
        index: int,
        qkv: torch.Tensor,
        residual: torch.Tensor,
        rotation: Rotation,
        attention: LayerAttention,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the layer as `Body` does."""
        if self.prepare is not None:
            qkv = self.prepare(qkv)
        x = self.o(attention.attend_product(index, qkv, self.heads, rotation).flatten(1))
        if self.after_attention is not None:
            x = self.after_attention(x)
        x, residual = self.gate_up(x, residual)
        x = self.down(self.activation(x))
        return (x if self.after_mlp is None else self.after_mlp(x)), residual


class ParallelBody(NamedTuple):
    """A layer whose attention and MLP read one normed input.

    One product makes both inputs: queries, keys and values in the first `qkv_width` columns, and
    behind them what the activation takes.

    Attributes:
        of_ranks: adds up what ranks have of both outputs, which is one sum; None is one rank.
    """

    o: Linear
    activation: Activation
    down: Linear
    heads: Heads
    qkv_width: int
    of_ranks: Map | None

    def __call__(
        self,
        index: int,
        product: torch.Tensor,
        residual: torch.Tensor,
        rotation: Rotation,
        attention: LayerAttention,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the layer as `Body` does."""
        qkv = product[:, : self.qkv_width].contiguous()
        x = self.o(attention.attend_product(index, qkv, self.heads, rotation).flatten(1))
        x += self.down(self.activation(product[:, self.qkv_width :]))
        return (x if self.of_ranks is None else self.of_ranks(x)), residual


class GeneralLayer(NamedTuple):
    """One layer: its QKV product, which may make the MLP's input too, and what follows."""

    qkv: AddedProduct
    body: SequentialBody | ParallelBody
