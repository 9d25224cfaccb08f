"""Steps whose rows share blocks: attention of them once for all rows, and of the rest row by row.

On the CPU torch plays FlashInfer's wrapper and the kernel behind it: the stand-ins take their
arguments and do what their documentation says, so plans, lengths and tiles are checked there too.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from engine.attention import cuda, flashinfer, widened
from engine.attention.cuda import CudaAttention
from engine.attention.modules import wait_for_modules
from engine.attention.plain import PlainAttention
from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.contracts.shared_blocks import Sharing
from engine.memory.pages import FP8_CACHE, KVCache
from tests.engine.attention.float8 import in_float8

BLOCK_SIZE = 16
SPEC = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=64, scale=0.125)
SPECS = [SPEC, replace(SPEC, sliding_window=19)]  # windows see shared blocks in part
CLOSE = 2**-6
"""Outputs over the shared keys, weights and results are rounded once each, by half of 2^-8."""


class Wrapper:
    """`BatchPrefillWithPagedKVCacheWrapper`."""

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
        lengths = {tensor.dtype for tensor in (qo_indptr, kv_indptr, kv_indices, last_page_len)}
        assert lengths == {torch.int32}
        assert len(qo_indptr) == len(kv_indptr) == len(last_page_len) + 1
        assert int(kv_indptr[-1]) == len(kv_indices)
        assert options["max_token_per_sequence"] >= int(qo_indptr.diff().max())
        self.page_size, self.options, self.num_tokens = page_size, options, int(qo_indptr[-1])

    def run(
        self, q: torch.Tensor, cache: torch.Tensor, out: torch.Tensor, return_lse: bool = False
    ) -> Any:
        assert len(q) == self.num_tokens
        logs = torch.empty(q.shape[:2])
        for tokens, pages, last in self.rows:
            length = (len(pages) - 1) * self.page_size + last
            keys, values = keys_and_values(cache, pages, length)
            scores = torch.einsum("qhd,khd->hqk", q[tokens].float(), keys)
            scores = scores * self.options["sm_scale"]
            query_at = torch.arange(scores.shape[1])[:, None] + length - scores.shape[1]
            distance = query_at - torch.arange(length)
            window = self.options["window_left"]
            hidden = (distance < 0) & self.options["causal"] | (distance > window) & (window >= 0)
            scores.masked_fill_(hidden, -torch.inf)
            out[tokens] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(q.dtype)
            logs[tokens] = scores.logsumexp(-1).T / math.log(2)
        return (out, logs) if return_lse else out


def keys_and_values(
    cache: torch.Tensor, blocks: torch.Tensor, length: int
) -> tuple[torch.Tensor, ...]:
    """The first of both in some blocks [length, num_q_heads, D], float32."""
    cells = cache[blocks.long()].transpose(0, 1).flatten(1, 2)[:, :length]
    return cells.float().repeat_interleave(2, dim=2).unbind()


def item_attention(
    out: torch.Tensor,
    log: torch.Tensor,
    q: torch.Tensor,
    pages: torch.Tensor,
    tables: torch.Tensor,
    tiles: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> None:
    """Softmax over the shared keys, which are one score and one value here, and the own."""
    assert softcap is None
    for table, first, count, before in tiles.tolist():
        tokens = slice(first, first + count)
        keys, values = keys_and_values(pages, tables.flatten()[table:], before + count)
        scores = torch.einsum("qhd,khd->qhk", q[tokens].float(), keys) * scale
        query_at = torch.arange(before, before + count)[:, None]
        scores.masked_fill_((torch.arange(len(keys)) > query_at)[:, None], -torch.inf)
        shared = log[tokens, :, None] * math.log(2)
        weights = torch.cat([shared, scores], -1).softmax(-1)
        own = torch.einsum("qhk,khd->qhd", weights[..., 1:], values)
        out[tokens] = (weights[..., :1] * out[tokens] + own).to(out.dtype)


class Group(NamedTuple):
    """Rows that share blocks.

    Attributes:
        num_computed: tokens of the shared blocks that a row of the same step brings.
        rows: of each, keys beyond the shared ones and query tokens.
    """

    num_shared: int
    num_computed: int
    rows: list[tuple[int, int]]


ITEMS = [(5, 5), (1, 1), (40, 33), (16, 16)]
# Rows that share nothing, and groups.
STEPS: dict[str, tuple[list[tuple[int, int]], list[Group]]] = {
    "nothing shared": ([(5, 5), (70, 33)], []),
    "one group": ([], [Group(3, 0, ITEMS)]),
    "a query and its items": ([], [Group(3, 48, ITEMS)]),
    "the end of a query and its items": ([], [Group(5, 16, ITEMS)]),
    "groups": ([], [Group(3, 0, ITEMS), Group(1, 0, [(90, 90), (7, 7)]), Group(2, 0, ITEMS[:2])]),
    "all of it": (
        [(33, 2), (1, 1)],
        [Group(2, 20, ITEMS), Group(9, 0, ITEMS), Group(1, 16, ITEMS)],
    ),
}


class Step:
    """A step's inputs and a layer of each of SPECS, the keys of earlier steps stored."""

    def __init__(self, name: str, device: str, head_dim: int = 64) -> None:
        torch.manual_seed(0)
        self.specs = [replace(spec, head_dim=head_dim) for spec in SPECS]
        self.device, self.last_block = torch.device(device), 0
        alone, groups = STEPS[name]
        shared = [self.grant(group.num_shared) for group in groups]
        rows = [(self.grant(-(-keys // BLOCK_SIZE)), keys, count) for keys, count in alone]
        for blocks, group in zip(shared, groups, strict=True):
            if group.num_computed:
                rows.append((blocks, len(blocks) * BLOCK_SIZE, group.num_computed))
        starts = [len(rows)]
        for blocks, group in zip(shared, groups, strict=True):
            for keys, count in group.rows:
                own = self.grant(-(-keys // BLOCK_SIZE))
                rows.append((blocks + own, len(blocks) * BLOCK_SIZE + keys, count))
            starts.append(len(rows))
        num_blocks = np.array([group.num_shared for group in groups], dtype=np.int32)
        self.inputs = self._inputs(rows, Sharing(np.array(starts), num_blocks) if groups else None)
        self.cache = KVCache(
            self.specs, self.last_block + 1, BLOCK_SIZE, torch.bfloat16, self.device
        )
        for layer in self.cache.layers:
            layer.normal_()
        num_tokens = int(self.inputs.query_starts_np[-1])
        self.q, self.k, self.v = (
            torch.randn(num_tokens, heads, head_dim).to(self.device, torch.bfloat16)
            for heads in (4, 2, 2)
        )

    def grant(self, count: int) -> list[int]:
        first, self.last_block = self.last_block + 1, self.last_block + count
        return list(range(first, first + count))

    def _inputs(
        self, rows: list[tuple[list[int], int, int]], sharing: Sharing | None
    ) -> AttentionInputs:
        tables = torch.zeros((len(rows), max(len(b) for b, _, _ in rows) + 2), dtype=torch.int32)
        slots = []
        for table, (blocks, keys, count) in zip(tables, rows, strict=True):
            table[: len(blocks)] = torch.tensor(blocks)
            positions = torch.arange(keys - count, keys)
            slots.append(
                table[positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
            )
        starts = np.cumsum([0, *(count for *_, count in rows)]).astype(np.int32)
        lengths = np.array([keys for _, keys, _ in rows], dtype=np.int32)
        return AttentionInputs(
            query_starts=torch.from_numpy(starts).to(self.device),
            query_starts_np=starts,
            seq_lens=torch.from_numpy(lengths).to(self.device),
            block_tables=tables.to(self.device),
            slots=torch.cat(slots).to(self.device),
            seq_lens_np=lengths,
            max_query_len=max(count for *_, count in rows),
            decode_len=0,
            sharing=sharing,
        )

    def wanted(self, layer: int) -> torch.Tensor:
        """Plain attention in float32 over a copy of the cache."""
        copy = KVCache(self.specs, 1, BLOCK_SIZE, torch.float32, self.device)
        copy.layers = [each.float() for each in self.cache.layers]
        plain = PlainAttention(self.specs, copy)
        plain.begin(self.inputs)
        return plain.attend(layer, self.q.float(), self.k.float(), self.v.float())


def use_wrappers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let wrappers of this file stand in for FlashInfer's."""
    made = flashinfer.IN_FLIGHT
    monkeypatch.setattr(flashinfer, "_wrappers", lambda *args: [Wrapper() for _ in range(made)])
    monkeypatch.setattr(flashinfer, "backend_of", lambda device: "fa3")
    monkeypatch.setattr(flashinfer, "modules_of", lambda *args: set())


@pytest.mark.parametrize("layer", range(len(SPECS)))
@pytest.mark.parametrize("name", STEPS)
def test_plans(monkeypatch: pytest.MonkeyPatch, name: str, layer: int) -> None:
    use_wrappers(monkeypatch)
    monkeypatch.setattr(flashinfer, "item_attention", item_attention)
    step = Step(name, "cpu")
    wanted = step.wanted(layer)
    plain = PlainAttention(step.specs, step.cache)
    plain.begin(step.inputs)
    plain.cells(layer).store(step.k, step.v)
    backend = flashinfer.FlashInferPrefill(step.specs, step.cache)
    backend.begin(step.inputs)
    out = torch.full_like(step.q, torch.nan)
    backend.attend(layer, step.q, out)
    torch.testing.assert_close(out.float(), wanted, rtol=CLOSE, atol=CLOSE)
    shared = [w for wrappers in backend._shared.values() for w in wrappers if hasattr(w, "rows")]
    groups = STEPS[name][1]
    assert [len(wrapper.rows) for wrapper in shared] == ([len(groups)] if groups else [])


def widen_pages(
    pages: torch.Tensor, blocks: torch.Tensor, scales: torch.Tensor, out: torch.Tensor
) -> None:
    """`engine.kernels.quantized.widen.widen_pages`."""
    taken = pages.view(torch.uint8)[blocks.long()].view(FP8_CACHE).float()
    out.copy_(taken * scales[None, :, None, :, None])


@pytest.mark.parametrize("layer", range(len(SPECS)))
@pytest.mark.parametrize("name", STEPS)
def test_pages_in_float8_are_widened(
    monkeypatch: pytest.MonkeyPatch, name: str, layer: int
) -> None:
    use_wrappers(monkeypatch)
    monkeypatch.setattr(widened, "widen_pages", widen_pages)
    step = Step(name, "cpu")
    step.cache = in_float8(step.cache, step.specs)
    plain = PlainAttention(step.specs, step.cache)
    plain.begin(step.inputs)
    wanted = plain.attend(layer, step.q, step.k, step.v)
    backend = flashinfer.FlashInferPrefill(step.specs, step.cache)
    assert backend.has_room(step.inputs)
    backend.begin(step.inputs)
    out = torch.full_like(step.q, torch.nan)
    backend.attend(layer, step.q, out)
    torch.testing.assert_close(out, wanted, rtol=CLOSE, atol=CLOSE)
    num_blocks = int((-(-step.inputs.seq_lens_np // BLOCK_SIZE)).sum())
    monkeypatch.setattr(backend._widened, "capacity", num_blocks - 1)
    assert not backend.has_room(step.inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("layer", range(len(SPECS)))
@pytest.mark.parametrize("name", STEPS)
def test_shared_blocks_are_read_once_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str, layer: int, head_dim: int
) -> None:
    pytest.importorskip("flashinfer")
    monkeypatch.setattr(cuda, "UNPLANNED_FLOPS", 0)
    step = Step(name, "cuda", head_dim)
    wait_for_modules(flashinfer.modules_of(step.specs, torch.bfloat16, step.device))
    wanted = step.wanted(layer)
    backend = CudaAttention(step.specs, step.cache, len(step.inputs.seq_lens))
    backend.begin(step.inputs)
    out = backend.attend(layer, step.q, step.k, step.v)
    torch.testing.assert_close(out.float(), wanted, rtol=CLOSE, atol=CLOSE)
