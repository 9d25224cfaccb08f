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
from engine.kernels.prefill_attention import (
    Tiling,
    prefill_attention,
    prefill_tiles,
    tile_width,
    tiling_of,
)
from engine.kernels.prefill_shares import Divided, PrefillScratch
from engine.memory.pages import KVCache
from sampling.device.mirror import to_device

MANY_KEYS = 1 << 30
"""More than a row has."""
Cut = tuple[int, Tiling]
"""Query heads a key head and a tiling: layers of which both are equal share tiles."""


class StepTiles(NamedTuple):
    """What the kernel reads of a step, on the device.

    Attributes:
        tables: int32, contiguous; the rows' block tables, into which tiles point.
        by_cut: `prefill_tiles` for the layers of each cut.
        num_keys: of the longest row; None where steps of any lengths put their tiles here.
    """

    tables: torch.Tensor
    by_cut: dict[Cut, torch.Tensor]
    num_keys: int | None = None


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
        dtype, device = cache.dtype, cache.layers[0].device
        self._cuts: list[Cut] = [
            (spec.num_q_heads // spec.num_kv_heads, tiling_of(spec.head_dim, dtype, device))
            for spec in specs
        ]
        self._scratch = None if invariant else _scratch_of(self._specs, self._cuts, device)

    @property
    def cuts(self) -> set[Cut]:
        """Those that the layers need."""
        return set(self._cuts)

    def begin(self, inputs: AttentionInputs, first_row: int) -> None:
        """Cut the rows from `first_row` on into tiles; their `seq_lens_np` must be exact."""
        tables = inputs.block_tables
        num_keys = int(inputs.seq_lens_np[first_row:].max(initial=0))
        self.step = StepTiles(tables.contiguous(), {}, num_keys)
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
        rows = (spec, q, pages, step.tables, step.by_cut[cut], out, cut[1], scales)
        if self._scratch is None:
            invariant_prefill(*rows)
        else:
            prefill_attention(*rows, self._divided(self._scratch, layer, step))

    def _divided(self, scratch: PrefillScratch, layer: int, step: StepTiles) -> Divided | None:
        """How many programs divide a tile's keys, by the step's tiles and its longest row alone."""
        spec, cut = self._specs[layer], self._cuts[layer]
        num_keys = MANY_KEYS if step.num_keys is None else step.num_keys
        if spec.sliding_window is not None:
            num_keys = min(num_keys, spec.sliding_window + tile_width(*cut))
        num_programs = len(step.by_cut[cut]) * spec.num_kv_heads
        return scratch.divided(num_programs, num_keys, some_empty=step.num_keys is None)

    def compile(self) -> None:
        """Launch the kernels of every kind of layer once, on one token of the null block."""
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
            for step in (self.step, self.step._replace(num_keys=None)):  # whole; perhaps divided
                self.attend(layer, q, torch.empty_like(q), step)


def _scratch_of(
    specs: Sequence[AttentionSpec], cuts: Sequence[Cut], device: torch.device
) -> PrefillScratch:
    """Room for what the shares of any layer's tiles leave."""
    num_queries = [cut[0] * tile_width(*cut) for cut in cuts]
    sums = [count * spec.head_dim for count, spec in zip(num_queries, specs, strict=True)]
    return PrefillScratch(max(num_queries), max(sums), device)


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
