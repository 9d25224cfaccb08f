"""Prefill by `engine.kernels.prefill_attention`: every layer, on every GPU, built in seconds.

It serves the layers that FlashInfer cannot express, and all layers while FlashInfer's modules are
being built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.kernels.invariant.attention import invariant_prefill
from engine.kernels.prefill_attention import Tiling, prefill_attention, prefill_tiles, tiling_of
from engine.memory.pages import KVCache
from sampling.device.mirror import to_device

Cut = tuple[int, Tiling]
"""Query heads a key head and a tiling: layers of which both are equal share tiles."""


class StepTiles(NamedTuple):
    """What the kernel reads of a step, on the device.

    Attributes:
        tables: int32, contiguous; the rows' block tables, into which tiles point.
        by_cut: `prefill_tiles` for the layers of each cut.
    """

    tables: torch.Tensor
    by_cut: dict[Cut, torch.Tensor]


class TiledPrefill:
    """Attends from rows that prefill, in any layer.

    Args:
        invariant: by the kernel whose bits are those of decoding rows too.

    Attributes:
        step: of the rows given to `begin`.
    """

    step: StepTiles

    def __init__(
        self, specs: Sequence[AttentionSpec], cache: KVCache, *, invariant: bool = False
    ) -> None:
        self._specs, self._cache = list(specs), cache
        self._kernel = invariant_prefill if invariant else prefill_attention
        dtype, device = cache.dtype, cache.layers[0].device
        self._cuts: list[Cut] = [
            (spec.num_q_heads // spec.num_kv_heads, tiling_of(spec.head_dim, dtype, device))
            for spec in specs
        ]

    @property
    def cuts(self) -> set[Cut]:
        """Those that the layers need."""
        return set(self._cuts)

    def begin(self, inputs: AttentionInputs, first_row: int) -> None:
        """Cut the rows from `first_row` on into tiles; their `seq_lens_np` must be exact."""
        tables = inputs.block_tables
        self.step = StepTiles(tables.contiguous(), {})
        for cut in self.cuts:
            tiles = prefill_tiles(
                inputs.query_starts_np[first_row:],
                inputs.seq_lens_np[first_row:],
                tables.shape[1],
                *cut,
            )
            tiles[:, 0] += first_row * tables.shape[1]
            self.step.by_cut[cut] = to_device(tiles, tables.device)

    def attend(self, layer: int, q: torch.Tensor, out: torch.Tensor, step: StepTiles) -> None:
        """Attend from the tiles' tokens among q [T, num_q_heads, D], into `out` of its shape.

        Both are those of the whole step; what other tokens have there is left as it is.
        """
        spec, cut = self._specs[layer], self._cuts[layer]
        assert spec.is_causal, "layers that are not causal attend in rows that decode"
        pages, scales = self._cache.layers[layer], self._cache.layer_scales(layer)
        self._kernel(spec, q, pages, step.tables, step.by_cut[cut], out, cut[1], scales)

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
            if not spec.is_causal:
                continue  # no row prefills in it
            q = torch.zeros((1, spec.num_q_heads, spec.head_dim), dtype=dtype, device=device)
            self.attend(layer, q, torch.empty_like(q), self.step)


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
            spec.is_causal,
        ): layer
        for layer, spec in enumerate(specs)
    }
    return list(kinds.values())
