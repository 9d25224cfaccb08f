"""Gemma 4's attention: values are normed, may be the keys, and keys may be another layer's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from engine.contracts.attention import AttentionSpec
from engine.contracts.heads import Heads
from engine.models.formats.projections import Projection
from engine.models.formats.reader import WeightReader
from engine.models.layers.attention import AttendProduct, Attention
from engine.models.layers.layer import LayerInputs, LayerPlaces
from engine.models.layers.norms import LoadedRmsNorm
from engine.models.weights.shares import RankShares, undivided


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedKeyAttention(Attention):
    """Attention with RMSNorms of each head of queries, keys and values, these without a weight.

    Attributes:
        eps: of all norms.
        keys_are_values: values are keys before their norm; there is no product of values.
        keeps: the name by which later layers read its keys and values; None: none does.
        reads: the name of the keys and values that it reads, and has none of its own.
    """

    eps: float
    keys_are_values: bool = False
    keeps: str | None = None
    reads: str | None = None

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        return () if self.reads else super().attention_specs

    def inputs(self, prefix: str, ranks: RankShares) -> Sequence[Projection]:
        count = 1 if self.reads else 2 if self.keys_are_values else 3
        return super().inputs(prefix, ranks)[:count]

    def read_heads(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> AttendProduct:
        ranks, name = reader.ranks, f"{prefix}.{self.name}"
        q_heads, kv_heads = ranks.heads(self.num_q_heads), ranks.keys(self.num_kv_heads)
        (spec,) = super().attention_specs
        spec = replace(spec, num_q_heads=q_heads.length, num_kv_heads=kv_heads.length)
        # A layer that is run alone, over a whole text, has the keys that it reads in its own place.
        layer = places.kept.get(self.reads) if self.reads else None
        layer = places.attention(spec) if layer is None else layer
        if self.keeps:
            places.kept[self.keeps] = layer

        def norm(part: str) -> LoadedRmsNorm:
            weight = reader.tensor(f"{name}.{part}_norm.weight", undivided(self.head_dim))
            return LoadedRmsNorm(reader.derived(weight.float, weight), self.eps)

        return SharedKeyHeads(
            layer,
            places.rotation(self.rotation),
            Heads(q_heads.length, kv_heads.length, None, self.eps),
            norm("q"),
            None if self.reads else norm("k"),
            self.eps,
            self.keys_are_values,
            self.reads or self.keeps,
        )


class SharedKeyHeads(NamedTuple):
    """Attention of the heads in a product of queries, and of keys and values where it has them.

    Attributes:
        layer, rotation: places of `LayerPlaces`.
        q_norm, k_norm: of queries and keys; None of keys where they are another layer's.
        name: by which keys and values are kept for other layers, or read.
    """

    layer: int
    rotation: int
    heads: Heads
    q_norm: LoadedRmsNorm
    k_norm: LoadedRmsNorm | None
    eps: float
    keys_are_values: bool
    name: str | None

    def __call__(self, qkv: torch.Tensor, inputs: LayerInputs) -> torch.Tensor:
        """Map a product [T, width] to outputs [T, num_q * head_dim]."""
        head_dim = len(self.q_norm.weight)
        by_head = qkv.view(len(qkv), -1, head_dim)
        q, own = by_head[:, : self.heads.num_q], by_head[:, self.heads.num_q :]
        kept = inputs.kept
        if self.k_norm is None:
            assert kept is not None
            assert self.name is not None
            kv = kept[self.name]
        else:
            k = own[:, : self.heads.num_kv]
            v = k if self.keys_are_values else own[:, self.heads.num_kv :]
            v = F.rms_norm(v.float(), (head_dim,), None, self.eps).to(v.dtype)
            kv = torch.cat([self.k_norm(k), v], dim=1).flatten(1)
            if self.name is not None:
                assert kept is not None
                kept[self.name] = kv
        whole = torch.cat([self.q_norm(q).flatten(1), kv], dim=1)
        rotation = inputs.rotations[self.rotation]
        return inputs.attention.attend_product(self.layer, whole, self.heads, rotation).flatten(1)
