"""Pages of keys and values: the cache of layers that keep them by token, in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from engine.contracts.attention import AttentionSpec

FP8_CACHE = torch.float8_e4m3fn
"""The dtype of a cache that holds keys and values in eight bits."""
LARGEST_FP8 = torch.finfo(FP8_CACHE).max


class KVCache:
    """Owns paged keys and values: a layer [num_blocks, 2, block_size, kv_heads, head_dim].

    Index 1 of a layer's tensor tells keys (0) from values (1). Block 0 is scratch: padding tokens
    write there.

    Attributes:
        dtype: of the keys and values that are given and read.
        device: of the layers, where there are any.
        scales: float32 [2, kv_heads] a layer, where the cache stores float8: what is stored times
            its scale is the key or value. All are powers of two, so that float32 and bfloat16 hold
            every product without rounding, and all kernels see the same numbers. None where keys
            and values are stored as they are.
    """

    def __init__(
        self,
        specs: Sequence[AttentionSpec],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        scales: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        self.scales = scales
        self.num_blocks = num_blocks
        self.layers = [
            torch.zeros(
                (num_blocks, 2, block_size, spec.num_kv_heads, spec.head_dim),
                dtype=dtype if scales is None else FP8_CACHE,
                device=device,
            )
            for spec in specs
        ]

    def layer_scales(self, layer: int) -> torch.Tensor | None:
        """The scales of a layer; None where keys and values are stored as they are."""
        return None if self.scales is None else self.scales[layer]

    @staticmethod
    def bytes_per_block(specs: Sequence[AttentionSpec], block_size: int, dtype: torch.dtype) -> int:
        """Bytes one block takes over all layers, stored in `dtype`."""
        per_token = sum(2 * spec.num_kv_heads * spec.head_dim for spec in specs)
        return per_token * block_size * dtype.itemsize


class Cells(NamedTuple):
    """The places of a step's keys and values in one layer's cache.

    Attributes:
        tensor: [num_blocks * 2 * block_size, kv_heads, head_dim]; the layer's cache, a view.
        key_rows: int64 [T]; the row of it where a token's key goes.
        values_after: rows from a token's key to its value.
        queries: [T, num_q_heads, head_dim], where the queries go; None: wherever their kernel
            allocates them.
        scales: as of `KVCache`, of the layer.
        rows: int64 [2 * T]; the rows of the keys, then of the values, where they are known.
    """

    tensor: torch.Tensor
    key_rows: torch.Tensor
    values_after: int
    queries: torch.Tensor | None = None
    scales: torch.Tensor | None = None
    rows: torch.Tensor | None = None

    def store(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write k, v [T, kv_heads, head_dim]."""
        tensor = self.tensor
        if self.scales is not None:
            k, v = (_in_fp8(x, scale) for x, scale in zip((k, v), self.scales, strict=True))
            tensor = tensor.view(torch.uint8)  # torch copies rows of bytes, not of float8
        rows = self.rows
        if rows is None:
            rows = torch.cat([self.key_rows, self.key_rows + self.values_after])
        tensor.index_copy_(0, rows, torch.cat([k, v]))


def _in_fp8(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Round x [T, kv_heads, D] over scale [kv_heads] to nearest; uint8, the bits of float8.

    What is beyond the format's largest number becomes that; NaN stays NaN.
    """
    scaled = x.float() / scale[:, None]
    return scaled.clamp(-LARGEST_FP8, LARGEST_FP8).to(FP8_CACHE).view(torch.uint8)
