"""Attention whose queries and keys are normed after they are rotated, as HunYuan's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from engine.kernels.norm import rms_norm
from engine.kernels.rope import rope
from engine.models.formats.reader import WeightReader
from engine.models.layers.attention import AttendProduct, Attention
from engine.models.layers.layer import LayerInputs, LayerPlaces
from engine.models.weights.shares import undivided


@dataclass(frozen=True, kw_only=True, eq=False)
class RotatedNormAttention(Attention):
    """Attention with an RMSNorm of each head of queries and keys, after they are rotated.

    Attributes:
        q_norm, k_norm: names of the norms in the module. eps: of both.
    """

    eps: float
    q_norm: str = "query_layernorm"
    k_norm: str = "key_layernorm"

    def read_heads(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> AttendProduct:
        ranks, name = reader.ranks, f"{prefix}.{self.name}"
        q_heads, kv_heads = ranks.heads(self.num_q_heads), ranks.keys(self.num_kv_heads)
        (spec,) = self.attention_specs
        spec = replace(spec, num_q_heads=q_heads.length, num_kv_heads=kv_heads.length)
        q, k = (
            reader.tensor(f"{name}.{norm}.weight", undivided(self.head_dim))
            for norm in (self.q_norm, self.k_norm)
        )
        counts = (q_heads.length, kv_heads.length, kv_heads.length)
        return RotatedNormHeads(
            places.attention(spec), places.rotation(self.rotation), counts, q, k, self.eps
        )


class RotatedNormHeads(NamedTuple):
    """Attention of the heads in a QKV product.

    Attributes:
        layer, rotation: places of `LayerPlaces`. counts: of heads of queries, keys and values.
        q_norm, k_norm: [head_dim].
    """

    layer: int
    rotation: int
    counts: tuple[int, int, int]
    q_norm: torch.Tensor
    k_norm: torch.Tensor
    eps: float

    def __call__(self, qkv: torch.Tensor, inputs: LayerInputs) -> torch.Tensor:
        """Map a product [T, heads * head_dim] to outputs [T, num_q * head_dim]."""
        rotation = inputs.rotations[self.rotation]
        heads = qkv.view(len(qkv), sum(self.counts), -1)
        q, k, v = torch.split(heads, list(self.counts), dim=1)
        q = rms_norm(rope(q, rotation), self.q_norm, self.eps)
        k = rms_norm(rope(k, rotation), self.k_norm, self.eps)
        return inputs.attention.attend(self.layer, q, k, v.contiguous()).flatten(1)
