"""Rows of queries over a paged cache, and their attention in float64.

Blocks that belong to nobody, and cells past a row's last key, hold NaN. The interpreter multiplies
bfloat16's bits as if they were integers, so there float16 stands for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.contracts.attention import AttentionSpec
from engine.kernels.prefill_attention import prefill_attention, prefill_tiles, tiling_of
from engine.memory.pages import KVCache
from sampling.device.mirror import to_device
from sampling.device.triton_support import INTERPRETED

DTYPES = [
    torch.float32,
    torch.float16,
    pytest.param(torch.bfloat16, marks=pytest.mark.skipif(INTERPRETED, reason="see above")),
]
Rows = list[tuple[int, int]]
"""(keys a row's last token sees, query tokens) of each."""
BLOCK_SIZE = 16
SPEC = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=32, scale=0.2)
STEPS: dict[str, Rows] = {
    "one token": [(1, 1)],
    "whole prompts": [(7, 7), (1, 1), (64, 64), (65, 65), (63, 63)],
    "chunks after a prefix": [(50, 3), (130, 66), (64, 1), (65, 1), (129, 64)],
    "more than a tile": [(200, 150), (5, 2)],
}
SINKS = torch.tensor([0.5, -1.0, 3.0, 0.0])
SPECS = {
    "plain": SPEC,
    "window": replace(SPEC, sliding_window=19),
    "window of a block": replace(SPEC, sliding_window=64),
    "soft cap": replace(SPEC, softcap=2.0),
    "ALiBi": replace(SPEC, num_kv_heads=1, alibi_slopes=torch.tensor([0.5, 0.25, 0.1, 0.0])),
    "sinks": replace(SPEC, num_kv_heads=4, head_dim=24, sinks=SINKS),
    "all": replace(SPEC, sliding_window=19, softcap=2.0, alibi_slopes=SINKS / 4, sinks=SINKS),
}


class Case:
    """Rows in a cache whose other cells hold NaN.

    Attributes:
        queries: the queries as the kernel is given them, from contiguous ones.
    """

    queries: Callable[[torch.Tensor], torch.Tensor] = staticmethod(torch.Tensor.contiguous)

    def __init__(
        self, spec: AttentionSpec, rows: Rows, dtype: torch.dtype, device: str, scale: float = 2.0
    ) -> None:
        torch.manual_seed(0)
        self.spec, self.rows, self.device = spec, rows, torch.device(device)
        counts = [-(-keys // BLOCK_SIZE) for keys, _ in rows]
        cache = KVCache([spec], sum(counts) + 1, BLOCK_SIZE, dtype, torch.device("cpu"))
        self.pages = cache.layers[0].fill_(torch.nan)
        self.tables = torch.zeros((len(rows), max(counts)), dtype=torch.int32)
        free = torch.split(torch.randperm(sum(counts)) + 1, counts)
        for row, (own, (keys, _)) in enumerate(zip(free, rows, strict=True)):
            self.tables[row, : len(own)] = own
            for i in range(keys):
                self.pages[own[i // BLOCK_SIZE], :, i % BLOCK_SIZE].normal_()
        num_tokens = sum(queries for _, queries in rows)
        self.q = (scale * torch.randn(num_tokens, spec.num_q_heads, spec.head_dim)).to(dtype)

    def attend(
        self,
        rows: list[int] | None = None,
        tokens: slice = slice(None),
        scales: torch.Tensor | None = None,
        padding: int = 0,
    ) -> torch.Tensor:
        """Of some rows, and of some tokens of each; after them tokens and tiles of nobody."""
        rows = list(range(len(self.rows))) if rows is None else rows
        starts, lengths, parts, first = [0], [], [], 0
        for row, (keys, queries) in enumerate(self.rows):
            begin, end, _ = tokens.indices(queries)
            if row in rows:
                parts.append(self.q[first + begin : first + end])
                starts.append(starts[-1] + end - begin)
                lengths.append(keys - queries + end)
            first += queries
        parts.append(torch.full_like(self.q[:padding], torch.nan))
        q, tables = torch.cat(parts).to(self.device), self.tables[rows].to(self.device)
        group = self.spec.num_q_heads // self.spec.num_kv_heads
        tiles = prefill_tiles(
            np.array(starts, dtype=np.int32),
            np.array(lengths, dtype=np.int32),
            tables.shape[1],
            group,
            tiling_of(q.shape[2], q.dtype, self.device),
        )
        assert tiles.dtype == np.int64
        tiles = np.pad(tiles, [(0, padding), (0, 0)])
        out = torch.full_like(q, torch.nan)
        spec = replace(
            self.spec,
            alibi_slopes=to_or_none(self.spec.alibi_slopes, self.device),
            sinks=to_or_none(self.spec.sinks, self.device),
        )
        pages = self.pages.to(self.device)
        self.run(
            spec,
            q,
            pages,
            tables,
            to_device(tiles, self.device),
            out,
            to_or_none(scales, self.device),
        )
        return out.cpu()

    def run(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        pages: torch.Tensor,
        tables: torch.Tensor,
        tiles: torch.Tensor,
        out: torch.Tensor,
        scales: torch.Tensor | None,
    ) -> None:
        """The kernel that is tested."""
        prefill_attention(spec, self.queries(q), pages, tables, tiles, out, scales=scales)

    def reference(self) -> torch.Tensor:
        """Attention in float64, row by row; [T, num_q_heads, D]."""
        spec, outs, first = self.spec, [], 0
        group = spec.num_q_heads // spec.num_kv_heads
        for row, (keys, queries) in enumerate(self.rows):
            cells = self.pages[self.tables[row].long()].transpose(1, 2).flatten(0, 1)[:keys]
            k, v = cells.double().repeat_interleave(group, dim=2).unbind(1)
            q = self.q[first : first + queries].double()
            scores = torch.einsum("qhd,khd->qhk", q, k) * spec.scale
            if spec.softcap is not None:
                scores = spec.softcap * torch.tanh(scores / spec.softcap)
            distance = torch.arange(keys) - torch.arange(keys - queries, keys)[:, None]
            if spec.alibi_slopes is not None:
                scores += spec.alibi_slopes.double()[:, None] * distance[:, None]
            hidden = (distance > 0) & spec.is_causal
            if spec.sliding_window is not None:
                hidden |= distance <= -spec.sliding_window
            scores.masked_fill_(hidden[:, None], -torch.inf)
            if spec.sinks is not None:
                sinks = spec.sinks.double()[:, None].expand(queries, -1, 1)
                scores = torch.cat([scores, sinks], -1)
            weights = scores.softmax(-1)[..., :keys]
            outs.append(torch.einsum("qhk,khd->qhd", weights, v))
            first += queries
        return torch.cat(outs)

    @property
    def tolerance(self) -> float:
        """Weights and result are rounded once each, by half of a last digit of no more than the
        largest value; a weight is 2 to the power of a difference of scores below 2^6, which
        float32 rounds, and so does each of its few additions and the sums of up to 200 weights.
        """
        largest = self.pages.nan_to_num().abs().max().item()
        own, single = torch.finfo(self.q.dtype).eps, torch.finfo(torch.float32).eps
        return largest * (1.0 * own + 2**7 * single)

    def check(self) -> None:
        wanted = self.reference()
        torch.testing.assert_close(self.attend().double(), wanted, rtol=0, atol=self.tolerance)


def lie_apart(q: torch.Tensor) -> torch.Tensor:
    """Queries as a view of a wider product, whose other numbers are NaN."""
    return torch.cat([q, torch.full_like(q, torch.nan)], dim=1)[:, : q.shape[1]]


def to_or_none(tensor: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(device)
