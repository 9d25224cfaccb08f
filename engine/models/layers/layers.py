"""The layers of the fused decoder: functions of hidden states and the residual, made once.

They are NamedTuples: calling a module costs as much as a small kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from engine.contracts.attention import LayerAttention
from engine.contracts.heads import Heads, Rotation
from engine.kernels.experts.layer import Experts
from engine.kernels.fp8 import Fp8Rows
from engine.kernels.fp8_linear import Fp8Linear
from engine.kernels.linear import Linear
from engine.kernels.norm import rms_norm
from engine.kernels.norm_linear import Fp8NormedProduct, NormedLinear, NormedProduct
from engine.parallel.collectives import rank_sum
from sampling.device.ranks import RankExchange


class Mlp(NamedTuple):
    """A norm, the gate-up product with the activation, and the down product."""

    gate_up: NormedProduct | NormedLinear
    down: Linear | Fp8Linear

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run it behind x + residual, [T, hidden] each; returns its output and that sum."""
        inner, residual = self.gate_up(x, residual)
        return self.down(inner), residual


class Fp8Mlp(NamedTuple):
    """An `Mlp` of float8 products, the second's input rounded by the activation or by itself."""

    gate_up: Fp8NormedProduct
    down: Callable[[torch.Tensor | Fp8Rows], torch.Tensor]

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run it as `Mlp` does."""
        inner, residual = self.gate_up.gated(x, residual)
        return self.down(inner), residual


class DividedExperts(NamedTuple):
    """Experts of each of which a rank has some inner columns: their outputs are summed."""

    experts: Experts
    exchange: RankExchange

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run them as `Mlp` does."""
        out, residual = self.experts(x, residual)
        return rank_sum(out, self.exchange), residual


class Body(NamedTuple):
    """A layer without its QKV product: rotation, attention, output product, MLP.

    `heads` is the layout of the QKV product, `prepare` what is done with it before it is turned.
    """

    o: Linear | Fp8Linear
    mlp: Mlp | Fp8Mlp | Experts | DividedExperts
    heads: Heads
    prepare: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __call__(
        self,
        index: int,
        qkv: torch.Tensor,
        residual: torch.Tensor,
        rotation: Rotation,
        attention: LayerAttention,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the layer; its output is the sum of the two tensors returned, [T, hidden] each.

        Args:
            index: of the layer in `attention`. residual: [T, hidden], may be overwritten.
        """
        if self.prepare is not None:
            qkv = self.prepare(qkv)
        x = self.o(attention.attend_product(index, qkv, self.heads, rotation).flatten(1))
        return self.mlp(x, residual)


Normed = NormedProduct | Fp8NormedProduct | NormedLinear


class Layer(NamedTuple):
    """One layer: its normed QKV product and what follows."""

    qkv: Normed
    body: Body


def norm_heads_of_ranks(
    norms: tuple[torch.Tensor, ...],
    eps: float,
    exchange: RankExchange,
    q: torch.Tensor,
    k: torch.Tensor,
) -> list[torch.Tensor]:
    """Norm q [T, q_width] and k [T, k_width] over the heads of all ranks, each of which has some.

    Key heads that several ranks hold are as often in the sum as in the width it is divided by.
    """
    squares = torch.stack([x.float().square().sum(-1) for x in (q, k)])
    sums = rank_sum(squares, exchange)[..., None]
    factors = [
        torch.rsqrt(own / (exchange.size * x.shape[1]) + eps)
        for x, own in zip((q, k), sums, strict=True)
    ]
    return [
        (x.float() * factor).to(x.dtype) * weight
        for x, factor, weight in zip((q, k), factors, norms, strict=True)
    ]


def prepare_qkv(
    norms: tuple[torch.Tensor, ...],
    eps: float,
    bound: float | None,
    exchange: RankExchange,
    qkv: torch.Tensor,
) -> torch.Tensor:
    """Norm queries and keys over all heads, and clip a QKV product to `bound`.

    Args:
        norms: weights [q_width] and [k_width]; empty for no norms.
        exchange: the ranks that have the other heads.
        qkv: [T, q_width + 2 * k_width].
    """
    if norms:
        q_width, k_width = len(norms[0]), len(norms[1])
        q, k, v = torch.split(qkv, [q_width, k_width, k_width], dim=1)
        if exchange.size == 1:
            q, k = rms_norm(q, norms[0], eps), rms_norm(k, norms[1], eps)
        else:
            q, k = norm_heads_of_ranks(norms, eps, exchange, q, k)
        qkv = torch.cat([q, k, v], dim=1)
    return qkv if bound is None else qkv.clamp_(-bound, bound)
