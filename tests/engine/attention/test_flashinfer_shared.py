"""What FlashInfer is told of a step whose rows share blocks, with its wrapper played by torch.

The stand-in takes the arguments of `BatchPrefillWithPagedKVCacheWrapper.plan` and `run` and does
what its documentation says, so plans, lengths and the join are checked without a GPU.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.attention import flashinfer
from engine.attention.base import AttentionInputs, AttentionSpec, KVCache
from engine.attention.plain import PlainAttention

BLOCK_SIZE, SHARED = 16, 3
SPEC = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=64, scale=0.125)


class Wrapper:
    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_q_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        **options: Any,
    ) -> None:
        self.rows = [
            (
                slice(int(qo_indptr[i]), int(qo_indptr[i + 1])),
                kv_indices[int(kv_indptr[i]) : int(kv_indptr[i + 1])].long(),
                int(last_page_len[i]),
            )
            for i in range(len(last_page_len))
        ]
        assert qo_indptr.dtype == kv_indptr.dtype == kv_indices.dtype == torch.int32
        self.page_size, self.options = page_size, options

    def run(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        out: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        out = torch.empty_like(q) if out is None else out
        logs = torch.empty(q.shape[:2])
        for tokens, pages, last in self.rows:
            length = (len(pages) - 1) * self.page_size + last
            keys, values = (
                cache[pages, kind].flatten(0, 1)[:length].float().repeat_interleave(2, dim=1)
                for kind in (0, 1)
            )
            scores = torch.einsum("qhd,khd->hqk", q[tokens].float(), keys)
            scores = scores * self.options["sm_scale"]
            behind = torch.arange(scores.shape[1])[:, None] + length - scores.shape[1]
            distance = behind - torch.arange(length)
            window = self.options["window_left"]
            hidden = (distance < 0) & self.options["causal"] | (distance > window) & (window >= 0)
            scores.masked_fill_(hidden, -torch.inf)
            out[tokens] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(q.dtype)
            logs[tokens] = scores.logsumexp(-1).T / math.log(2)
        return (out, logs) if return_lse else out


@pytest.mark.parametrize("window", [None, 19])
@pytest.mark.parametrize("num_shared", [0, SHARED])
def test_shared_blocks_change_nothing(
    monkeypatch: pytest.MonkeyPatch, window: int | None, num_shared: int
) -> None:
    made = flashinfer.IN_FLIGHT
    monkeypatch.setattr(flashinfer, "_wrappers", lambda *args: [Wrapper() for _ in range(made)])
    monkeypatch.setattr(flashinfer, "_backend", lambda device: "fa3")
    monkeypatch.setattr(flashinfer, "_load_kernels", lambda *args: None)
    torch.manual_seed(0)
    spec = replace(SPEC, sliding_window=window)
    before = SHARED * BLOCK_SIZE
    rows = [(5, 5), (1, 1), (40, 33), (16, 16)]  # keys beyond the shared ones, query tokens
    cache = KVCache([spec], 20, BLOCK_SIZE, torch.bfloat16, torch.device("cpu"))
    cache.layers[0].normal_()
    tables = torch.zeros((len(rows), SHARED + 3), dtype=torch.int32)
    tables[:, :SHARED] = torch.tensor([7, 2, 9])
    free = iter([1, 3, 4, 5, 6, 8, 10, 11])
    slots = []
    for table, (keys, queries) in zip(tables, rows, strict=True):
        for i in range(-(-keys // BLOCK_SIZE)):
            table[SHARED + i] = next(free)
        positions = torch.arange(before + keys - queries, before + keys)
        slots.append(table[positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE)
    starts = np.concatenate([[0], np.cumsum([q for _, q in rows])]).astype(np.int32)
    lengths = np.array([before + keys for keys, _ in rows], dtype=np.int32)
    inputs = AttentionInputs(
        query_starts=torch.from_numpy(starts),
        query_starts_np=starts,
        seq_lens=torch.from_numpy(lengths),
        block_tables=tables,
        slots=torch.cat(slots),
        seq_lens_np=lengths,
        max_query_len=33,
        decode_len=0,
        num_shared=num_shared,
    )
    q = torch.randn(int(starts[-1]), 4, 64).bfloat16()
    k, v = (torch.randn(int(starts[-1]), 2, 64).bfloat16() for _ in range(2))
    plain = PlainAttention([spec], cache)
    plain.begin(inputs)
    wanted = plain.attend(0, q, k, v)  # stores k and v too
    backend = flashinfer.FlashInferPrefill([spec], cache)
    backend.begin(inputs)
    out = torch.empty_like(q)
    backend.attend(0, q, out)
    torch.testing.assert_close(out.float(), wanted.float(), rtol=2**-6, atol=2**-6)
    is_joined = bool(num_shared) and window is None
    shared = [w for wrappers in backend._shared.values() for w in wrappers if hasattr(w, "rows")]
    assert len(shared) == is_joined
