"""Rows of random keys and values in a shuffled cache, and their attention in float64.

Tolerances are derived. A score is a sum of D products of values of size at most m, scaled by
D^-1/2: its rounding error is at most e = D^1/2 m² u for unit roundoff u of float32. The softmax
turns that into a relative error of 2e in its weights, and the weighted sum of values of size at
most m adds L u. In a narrow type the weights and the output are each rounded once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from engine.attention.plain import PlainAttention
from engine.contracts.attention import AttentionBackend, AttentionInputs, AttentionSpec
from engine.memory.pages import KVCache

Backend = Callable[[Sequence[AttentionSpec], KVCache], AttentionBackend]
HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 4, 2, 16, 4
PLAIN = AttentionSpec(HEADS, KV_HEADS, HEAD_DIM, scale=HEAD_DIM**-0.5)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
SINKS = torch.tensor([0.3, -1.0, 2.0, 0.0])
SPECS = {
    "plain": PLAIN,
    "one-key-head": replace(PLAIN, num_kv_heads=1),
    "no-grouping": replace(PLAIN, num_kv_heads=HEADS),
    "window-1": replace(PLAIN, sliding_window=1),
    "window-4": replace(PLAIN, sliding_window=4),
    "window-7": replace(PLAIN, sliding_window=7),
    "window-wider-than-rows": replace(PLAIN, sliding_window=1000),
    "softcap": replace(PLAIN, softcap=0.7),
    "alibi": replace(PLAIN, alibi_slopes=SLOPES),
    "sinks": replace(PLAIN, sinks=SINKS),
    "alibi-window": replace(PLAIN, alibi_slopes=SLOPES, sliding_window=5),
    "everything": replace(PLAIN, softcap=0.7, alibi_slopes=SLOPES, sinks=SINKS, sliding_window=6),
    "not-causal": replace(PLAIN, is_causal=False),
    "not-causal-window": replace(PLAIN, is_causal=False, sliding_window=6),
}
# (keys seen, query tokens) of each row; a decode step, a mixed one, prefill, verification.
STEPS = {
    "decode": [(1, 1), (7, 1), (8, 1), (33, 1)],
    "mixed": [(9, 1), (16, 16), (3, 1), (20, 5), (1, 1), (37, 5)],
    "prefill": [(31, 31)],
    "verify": [(12, 3), (5, 3), (40, 3)],
    "far-apart": [(3, 1), (300, 1), (5, 1), (700, 1)],
    "padded": [(5, 1), (6, 2), (0, 0), (0, 0)],
}


class Pages:
    """Random keys and values in a shuffled cache, and the step's inputs."""

    def __init__(
        self, spec: AttentionSpec, rows: list[tuple[int, int]], dtype: torch.dtype
    ) -> None:
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        self.spec, self.rows = spec, rows
        self.k = [random(n, spec.num_kv_heads, HEAD_DIM) for n, _ in rows]
        self.v = [random(n, spec.num_kv_heads, HEAD_DIM) for n, _ in rows]
        self.q = random(sum(q for _, q in rows), HEADS, HEAD_DIM)
        width = max(-(-n // BLOCK_SIZE) for n, _ in rows) + 1
        num_blocks = 1 + sum(-(-n // BLOCK_SIZE) for n, _ in rows)
        order = (torch.randperm(num_blocks - 1, generator=generator) + 1).tolist()
        self.cache = KVCache([spec], num_blocks, BLOCK_SIZE, dtype, torch.device("cpu"))
        # What a row never wrote must not matter: finite junk in every cell.
        self.cache.layers[0].copy_(torch.randn(self.cache.layers[0].shape, generator=generator) * 9)
        self.tables = torch.zeros((len(rows), width), dtype=torch.int32)
        slots = []
        for row, (num_keys, num_queries) in enumerate(rows):
            blocks = [order.pop() for _ in range(-(-num_keys // BLOCK_SIZE))]
            self.tables[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
            where = [blocks[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(num_keys)]
            past = num_keys - num_queries
            for i in range(past):
                page = self.cache.layers[0][where[i] // BLOCK_SIZE]
                page[0, where[i] % BLOCK_SIZE] = self.k[row][i]
                page[1, where[i] % BLOCK_SIZE] = self.v[row][i]
            slots += where[past:]
        self.slots = torch.tensor(slots)

    def inputs(self) -> AttentionInputs:
        starts = np.concatenate([[0], np.cumsum([q for _, q in self.rows])]).astype(np.int32)
        return AttentionInputs(
            query_starts=torch.from_numpy(starts),
            query_starts_np=starts,
            seq_lens=torch.tensor([n for n, _ in self.rows], dtype=torch.int32),
            block_tables=self.tables,
            slots=self.slots,
            seq_lens_np=np.array([n for n, _ in self.rows], dtype=np.int32),
            max_query_len=max(q for _, q in self.rows),
        )

    def attend(
        self, spec: AttentionSpec | None = None, make: Backend = PlainAttention
    ) -> torch.Tensor:
        backend = make([spec or self.spec], self.cache)
        backend.begin(self.inputs())
        new = [slice(n - q, n) for n, q in self.rows]
        k = torch.cat([k[part] for k, part in zip(self.k, new, strict=True)])
        v = torch.cat([v[part] for v, part in zip(self.v, new, strict=True)])
        return backend.attend(0, self.q, k, v)

    def reference(self) -> torch.Tensor:
        queries = torch.split(self.q, [q for _, q in self.rows])
        return torch.cat(
            [dense(self.spec, *row) for row in zip(queries, self.k, self.v, strict=True)]
        )


def dense(spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Textbook attention of q [q, heads, D] over all of k, v [L, kv_heads, D], in float64."""
    group = HEADS // spec.num_kv_heads
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,lhd->hql", q.double(), k) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    position = torch.arange(len(k) - len(q), len(k))[:, None]
    distance = torch.arange(len(k))[None] - position  # [q, L]
    if spec.alibi_slopes is not None:
        scores = scores + spec.alibi_slopes.double()[:, None, None] * distance
    hidden = (distance > 0) & spec.is_causal
    if spec.sliding_window is not None:
        hidden = hidden | (distance <= -spec.sliding_window)
    weights = scores.masked_fill(hidden, -torch.inf).exp()
    total = weights.sum(-1, keepdim=True)
    if spec.sinks is not None:
        total = total + spec.sinks.double().exp()[:, None, None]
    return torch.einsum("hql,lhd->qhd", weights / total, v)


def tolerance(pages: Pages) -> float:
    single: float = torch.finfo(torch.float32).eps / 2
    own: float = torch.finfo(pages.q.dtype).eps / 2
    size = max(float(x.abs().max()) for x in [pages.q, *pages.k, *pages.v] if len(x))
    length = max(n for n, _ in pages.rows)
    error: float = (2 * HEAD_DIM**0.5 * size**2 + length) * single
    return size * (error + (2 * own if own > single else 0.0))
