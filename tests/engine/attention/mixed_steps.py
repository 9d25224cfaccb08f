"""Steps of rows that decode and rows that prefill, over a cache with what an earlier owner left."""

from __future__ import annotations

import numpy as np
import torch

from engine.attention.cuda import CudaAttention
from engine.attention.flashinfer import modules_of
from engine.attention.modules import wait_for_modules
from engine.attention.plain import PlainAttention
from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.memory.pages import KVCache

BLOCK_SIZE = 16
SPEC = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=64, scale=0.125)
Rows = list[tuple[int, int]]
"""Keys seen and query tokens of each row."""


class Step:
    """Rows whose earlier keys are stored, and what they bring."""

    def __init__(
        self, spec: AttentionSpec, step: tuple[int, Rows], dtype: torch.dtype, device: str
    ) -> None:
        decode_len, rows = step
        torch.manual_seed(0)
        self.spec = spec
        counts = [-(-keys // BLOCK_SIZE) for keys, _ in rows]
        where = torch.device(device)
        self.cache = KVCache([spec], sum(counts) + 1, BLOCK_SIZE, dtype, where)
        self.cache.layers[0].fill_(float("nan"))
        tables = torch.zeros((len(rows), max(counts)), dtype=torch.int32)
        slots = []
        for row, own in enumerate(torch.split(torch.randperm(sum(counts)) + 1, counts)):
            keys, queries = rows[row]
            tables[row, : len(own)] = own
            for i in range(keys - queries):
                self.cache.layers[0][own[i // BLOCK_SIZE], :, i % BLOCK_SIZE].normal_()
            positions = torch.arange(keys - queries, keys)
            slots.append(own[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE)
        starts = np.concatenate([[0], np.cumsum([queries for _, queries in rows])])
        lengths = np.array([keys for keys, _ in rows], dtype=np.int32)
        self.inputs = AttentionInputs(
            query_starts=torch.from_numpy(starts.astype(np.int32)).to(where),
            query_starts_np=starts.astype(np.int32),
            seq_lens=torch.from_numpy(lengths).to(where),
            block_tables=tables.to(where),
            slots=torch.cat(slots).to(where),
            seq_lens_np=lengths,
            max_query_len=max(queries for _, queries in rows),
            decode_len=decode_len,
        )
        num_tokens = int(starts[-1])
        self.q, self.k, self.v = (
            torch.randn(num_tokens, heads, spec.head_dim).to(where, dtype)
            for heads in (spec.num_q_heads, spec.num_kv_heads, spec.num_kv_heads)
        )

    def backend(self) -> CudaAttention:
        inputs = self.inputs
        return CudaAttention([self.spec], self.cache, len(inputs.seq_lens), inputs.decode_len)

    def attend(self) -> torch.Tensor:
        dtype, device = self.q.dtype, self.q.device
        if device.type == "cuda":
            wait_for_modules(modules_of([self.spec], dtype, device))
        return self.attend_by(self.backend())

    def attend_by(self, backend: CudaAttention) -> torch.Tensor:
        backend.begin(self.inputs)
        return backend.attend(0, self.q, self.k, self.v)

    def twin(self) -> torch.Tensor:
        """Plain attention in float32 over the same cache without the NaN."""
        return self.in_plain(self.clean(torch.float32))

    def clean(self, dtype: torch.dtype) -> KVCache:
        """The cache with zeros in place of NaN."""
        old = self.cache
        clean = KVCache([self.spec], old.num_blocks, BLOCK_SIZE, dtype, self.q.device)
        clean.layers[0].copy_(old.layers[0].nan_to_num())
        return clean

    def in_plain(self, cache: KVCache) -> torch.Tensor:
        """Plain attention in the cache's dtype, which must hold no NaN."""
        backend = PlainAttention([self.spec], cache)
        backend.begin(self.inputs)
        return backend.attend(0, *(x.to(cache.dtype) for x in (self.q, self.k, self.v)))
