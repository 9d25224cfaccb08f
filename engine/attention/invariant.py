"""Paged attention in plain torch whose bits do not depend on what else a step computes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812

from engine.attention.plain import PlainAttention
from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.kernels.invariant.attention_torch import invariant_attention_torch
from engine.memory.pages import KVCache


class InvariantPlainAttention(PlainAttention):
    """The `AttentionBackend` of `--batch-invariant` on a CPU."""

    def __init__(self, specs: Sequence[AttentionSpec], cache: KVCache) -> None:
        super().__init__(specs, cache)
        self._tables = torch.zeros((0, 1), dtype=torch.int32)
        self._ends = self._row_ends = torch.zeros(0, dtype=torch.int64)
        self._longest = 0

    def begin(self, inputs: AttentionInputs) -> None:
        self._begin_cells(inputs.slots)
        counts = torch.from_numpy(inputs.query_starts_np).diff().long()
        rows = torch.repeat_interleave(torch.arange(len(counts)), counts)
        lasts = inputs.query_starts[1:].long()[rows]
        row_ends = inputs.seq_lens.long()[rows]
        ends = row_ends - (lasts - 1 - torch.arange(len(rows)))
        num_padding = len(inputs.slots) - len(rows)
        self._ends = F.pad(ends, (0, num_padding))
        self._row_ends = F.pad(row_ends, (0, num_padding))
        self._tables = F.pad(inputs.block_tables[rows], (0, 0, 0, num_padding))
        self._longest = inputs.max_seq_len

    def attend_stored(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Attend as `attend` does, where the keys and values are in the layer's cells already."""
        spec = self._specs[layer]
        return invariant_attention_torch(
            spec,
            q.contiguous(),
            self._cache.layers[layer],
            self._tables,
            self._ends if spec.is_causal else self._row_ends,
            self._longest,
            self._cache.layer_scales(layer),
            self._ends - 1,
        )
