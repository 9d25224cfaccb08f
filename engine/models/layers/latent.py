"""Attention whose keys and values are compressed (multi-head latent attention, arXiv 2405.04434).

A layer's first product makes of a token its queries, a vector of `kv_rank` numbers and `rope` more,
which are turned and are the end of every head's key. A second product makes of the vector the
beginnings of all keys, and all values. Keys and values are stored so, whole and head by head, in
the cache that other models have: its kernels serve as they are, and what a step rounds does not
depend on the cache. A value has as much room as a key; what it leaves is filled with its own first
lanes, so that a scale of the cache covers no other numbers, and is cut off behind attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from engine.kernels.fp8_linear import Fp8Linear
from engine.kernels.linear import Linear
from engine.kernels.norm import rms_norm
from engine.models.layers.rotation import lane_order

NORM_EPS = 1e-6
"""Of the norms of compressed vectors, which take none from the config."""
FIRST_KEYS = "kv_a_proj_with_mqa"


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Sizes of a layer's compressed attention.

    Attributes:
        q_rank: of compressed queries; None where queries are not compressed.
        kv_rank: of compressed keys and values.
        nope, rope: lanes of queries and keys that are not turned, and behind them those that are.
        value: lanes of values, no more than `head_dim`.
        interleaved: lanes are turned in pairs of neighbours.
    """

    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int
    interleaved: bool

    @property
    def head_dim(self) -> int:
        """Lanes of queries and keys."""
        return self.nope + self.rope


def latent_config(config: Any) -> LatentConfig | None:
    """Read a transformers config; None where keys and values are not compressed."""
    if getattr(config, "kv_lora_rank", None) is None:
        return None
    return LatentConfig(
        q_rank=config.q_lora_rank,
        kv_rank=config.kv_lora_rank,
        nope=config.qk_nope_head_dim,
        rope=config.qk_rope_head_dim,
        value=config.v_head_dim,
        interleaved=getattr(config, "rope_interleave", True),
    )


class LatentHeads(NamedTuple):
    """Maps a layer's first product to the queries, keys and values of all heads.

    Attributes:
        q_norm, q: norm [q_rank] and product of compressed queries; None where they are not.
        kv_norm, kv: norm [kv_rank] and product of compressed keys and values.
        rope: lanes that all key heads share.
        columns: int64 [3 * heads * head_dim], see `head_columns`.
    """

    q_norm: torch.Tensor | None
    q: Linear | Fp8Linear | None
    kv_norm: torch.Tensor
    kv: Linear | Fp8Linear
    rope: int
    columns: torch.Tensor

    def __call__(self, product: torch.Tensor) -> torch.Tensor:
        """Make [T, 3 * heads * head_dim] of [T, queries + kv_rank + rope]."""
        kv_rank = len(self.kv_norm)
        widths = [product.shape[1] - kv_rank - self.rope, kv_rank, self.rope]
        q, kv, rope = torch.split(product, widths, dim=1)
        if self.q is not None:
            assert self.q_norm is not None
            q = self.q(rms_norm(q, self.q_norm, NORM_EPS))
        kv = self.kv(rms_norm(kv, self.kv_norm, NORM_EPS))
        return torch.cat([q, rope, kv], dim=1).index_select(1, self.columns)


def head_columns(latent: LatentConfig, num_heads: int) -> torch.Tensor:
    """Where queries, keys and values are in [queries | turned lanes | keys and values by head].

    Lanes of queries and keys are in the order that our kernels turn, see `rotation`.

    Returns:
        int64 [3 * num_heads * head_dim].
    """
    nope, rope, value, head_dim = latent.nope, latent.rope, latent.value, latent.head_dim
    order = lane_order(head_dim, rope, interleaved=latent.interleaved)
    if order is None:
        order = torch.arange(head_dim)
    order = (order + nope) % head_dim  # the model's turned lanes are the last ones
    heads, shared = torch.arange(num_heads)[:, None], num_heads * head_dim
    own = shared + rope + heads * (nope + value)
    keys = torch.where(order < nope, own + order, shared + order - nope)
    values = own + nope + torch.arange(head_dim) % value
    return torch.cat([heads * head_dim + order, keys, values]).flatten()


class ValueLanes(NamedTuple):
    """The output product of heads [T, heads * head_dim], by the first `value` lanes of each.

    Attributes:
        product: of [T, heads * value].
    """

    product: Linear | Fp8Linear
    head_dim: int
    value: int

    def __call__(self, heads: torch.Tensor) -> torch.Tensor:
        """Cut and multiply."""
        split = heads.view(len(heads), -1, self.head_dim)
        return self.product(split[..., : self.value].flatten(1))


class _Reader(Protocol):
    def read(self, shape: tuple[int, ...], name: str) -> torch.Tensor: ...
    def product(self, prefix: str, widths: dict[str, int], fan_in: int) -> Linear | Fp8Linear: ...


def first_widths(latent: LatentConfig, num_heads: int) -> dict[str, int]:
    """The parts of a layer's first product, by name."""
    if latent.q_rank is None:
        queries = {"q_proj": num_heads * latent.head_dim}
    else:
        queries = {"q_a_proj": latent.q_rank}
    return queries | {FIRST_KEYS: latent.kv_rank + latent.rope}


def read_latent_heads(
    latent: LatentConfig, num_heads: int, reader: _Reader, prefix: str
) -> LatentHeads:
    """Read what follows the first product of the attention whose tensors' names begin so."""
    q_norm, q, rank = None, None, latent.q_rank
    if rank is not None:
        q_norm = reader.read((rank,), f"{prefix}.q_a_layernorm.weight")
        q = reader.product(prefix, {"q_b_proj": num_heads * latent.head_dim}, rank)
    kv_norm = reader.read((latent.kv_rank,), f"{prefix}.kv_a_layernorm.weight")
    width = num_heads * (latent.nope + latent.value)
    return LatentHeads(
        q_norm,
        q,
        kv_norm,
        reader.product(prefix, {"kv_b_proj": width}, latent.kv_rank),
        latent.rope,
        head_columns(latent, num_heads).to(kv_norm.device),
    )
