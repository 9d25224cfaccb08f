"""Prefill by `engine.kernels.prefill_attention`: every layer, on every GPU, built in seconds.

It serves the layers that FlashInfer cannot express, and all layers while FlashInfer's modules are
being built.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.contracts.attention import AttentionInputs, AttentionSpec, KVCache
from engine.kernels.prefill_attention import Tiling, prefill_attention, prefill_tiles, tiling_of
from sampling.mirror import to_device

_Cut = tuple[int, Tiling]
"""Query heads a key head and a tiling: layers of which both are equal share tiles."""


class TiledPrefill:
    """Attends from rows that prefill, in any layer."""

    def __init__(self, specs: Sequence[AttentionSpec], cache: KVCache) -> None:
        self._specs, self._cache = list(specs), cache
        dtype, device = cache.dtype, cache.layers[0].device
        self._cuts: list[_Cut] = [
            (spec.num_q_heads // spec.num_kv_heads, tiling_of(spec.head_dim, dtype, device))
            for spec in specs
        ]
        self._tiles: dict[_Cut, torch.Tensor] = {}
        self._tables: torch.Tensor

    def begin(self, inputs: AttentionInputs, first_row: int) -> None:
        """Cut the rows from `first_row` on into tiles; their `seq_lens_np` must be exact."""
        tables = inputs.block_tables
        self._tables = tables.contiguous()
        for cut in set(self._cuts):
            tiles = prefill_tiles(
                inputs.query_starts_np[first_row:],
                inputs.seq_lens_np[first_row:],
                tables.shape[1],
                *cut,
            )
            tiles[:, 0] += first_row * tables.shape[1]
            self._tiles[cut] = to_device(tiles, tables.device)

    def attend(self, layer: int, q: torch.Tensor, out: torch.Tensor) -> None:
        """Attend from the rows' tokens among q [T, num_q_heads, D], into `out` of its shape.

        Both are those of the whole step; what other rows have there is left as it is.
        """
        cut = self._cuts[layer]
        pages, tiles = self._cache.layers[layer], self._tiles[cut]
        scales = self._cache.layer_scales(layer)
        prefill_attention(self._specs[layer], q, pages, self._tables, tiles, out, cut[1], scales)

    def compile(self) -> None:
        """Launch the kernel of every kind of layer once, on one token of the null block."""
        device, dtype = self._cache.layers[0].device, self._cache.dtype
        ones = np.ones(1, dtype=np.int32)
        self.begin(
            AttentionInputs(
                query_starts=torch.tensor([0, 1], dtype=torch.int32, device=device),
                query_starts_np=np.array([0, 1], dtype=np.int32),
                seq_lens=torch.ones(1, dtype=torch.int32, device=device),
                block_tables=torch.zeros((1, 1), dtype=torch.int32, device=device),
                slots=torch.zeros(1, dtype=torch.int64, device=device),
                seq_lens_np=ones,
                max_query_len=1,
            ),
            0,
        )
        for layer in one_of_each(self._specs):
            spec = self._specs[layer]
            q = torch.zeros((1, spec.num_q_heads, spec.head_dim), dtype=dtype, device=device)
            self.attend(layer, q, torch.empty_like(q))


def one_of_each(specs: Sequence[AttentionSpec]) -> list[int]:
    """A layer of each kind that is compiled apart."""
    kinds = {
        (
            spec.num_q_heads,
            spec.num_kv_heads,
            spec.head_dim,
            spec.sliding_window,
            spec.softcap is None,
            spec.alibi_slopes is None,
            spec.sinks is None,
        ): layer
        for layer, spec in enumerate(specs)
    }
    return list(kinds.values())
