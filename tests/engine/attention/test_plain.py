"""Paged attention against a dense float64 reference, every feature, ragged rows.

Tolerances are derived. A score is a sum of D products of values of size at most m, scaled by
D^-1/2: its rounding error is at most e = D^1/2 m² u for unit roundoff u of float32. The softmax
turns that into a relative error of 2e in its weights, and the weighted sum of values of size at
most m adds L u. In a narrow type the weights and the output are each rounded once more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.attention.plain import PlainAttention
from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.memory.pages import FP8_CACHE, Cells, KVCache

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

    def attend(self, spec: AttentionSpec | None = None) -> torch.Tensor:
        backend = PlainAttention([spec or self.spec], self.cache)
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
    hidden = distance > 0
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


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", SPECS)
def test_float32(name: str, step: str) -> None:
    pages = Pages(SPECS[name], STEPS[step], torch.float32)
    torch.testing.assert_close(
        pages.attend().double(), pages.reference(), rtol=0, atol=tolerance(pages)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["plain", "window-7", "everything"])
def test_narrow_types(name: str, dtype: torch.dtype) -> None:
    pages = Pages(SPECS[name], STEPS["mixed"], dtype)
    out = pages.attend()
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), pages.reference(), rtol=0, atol=tolerance(pages))


@pytest.mark.parametrize("other", [6, 8])
def test_a_window_off_by_one_is_noticed(other: int) -> None:
    pages = Pages(SPECS["window-7"], STEPS["mixed"], torch.float32)
    wrong = pages.attend(replace(pages.spec, sliding_window=other)).double()
    assert (wrong - pages.reference()).abs().max() > 1000 * tolerance(pages)


def test_unowned_tokens_stay_finite_and_land_in_the_null_block() -> None:
    pages = Pages(PLAIN, [(5, 1), (9, 1)], torch.float32)
    wanted = pages.reference()
    pages.q = torch.cat([pages.q, torch.ones(3, HEADS, HEAD_DIM)])
    pages.slots = torch.cat([pages.slots, torch.zeros(3, dtype=torch.int64)])
    backend = PlainAttention([PLAIN], pages.cache)
    backend.begin(pages.inputs())
    padding = torch.ones(3, KV_HEADS, HEAD_DIM)
    k = torch.cat([pages.k[0][-1:], pages.k[1][-1:], padding])
    v = torch.cat([pages.v[0][-1:], pages.v[1][-1:], padding])
    out = backend.attend(0, pages.q, k, v)
    torch.testing.assert_close(out[:2].double(), wanted, rtol=0, atol=tolerance(pages))
    assert out[2:].isfinite().all()


@pytest.mark.parametrize("name", ["plain", "window-4", "everything"])
def test_what_earlier_owners_of_a_block_left_does_not_matter(name: str) -> None:
    """A row goes from prefill to decode over blocks full of NaN, beside a longer row."""
    pages = Pages(SPECS[name], [(9, 9), (30, 30)], torch.float32)
    wanted = pages.reference()
    pages.cache.layers[0][1:] = torch.nan
    backend = PlainAttention([pages.spec], pages.cache)
    whole = pages.inputs()
    outs: list[list[torch.Tensor]] = [[], []]
    for parts in [[(0, 6), (0, 29)], [(6, 7), (29, 30)], [(7, 9), (30, 30)]]:
        lengths = np.array([last - first for first, last in parts], dtype=np.int32)
        seen = np.array([last for _, last in parts], dtype=np.int32)
        (first, last), (other_first, other_last) = parts
        tokens = torch.cat(
            [torch.arange(first, last), torch.arange(9 + other_first, 9 + other_last)]
        )
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        backend.begin(
            replace(
                whole,
                query_starts=torch.from_numpy(starts),
                query_starts_np=starts,
                seq_lens=torch.from_numpy(seen),
                seq_lens_np=seen,
                slots=pages.slots[tokens],
                max_query_len=int(lengths.max()),
            )
        )
        k, v = torch.cat(pages.k)[tokens], torch.cat(pages.v)[tokens]
        out = backend.attend(0, pages.q[tokens], k, v)
        for row, part in enumerate(torch.split(out, lengths.tolist())):
            outs[row].append(part)
    got = torch.cat([torch.cat(parts) for parts in outs])
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=tolerance(pages))


def test_long_queries_go_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages(SPECS["everything"], STEPS["mixed"], torch.float32)
    whole = pages.attend()
    monkeypatch.setattr("engine.attention.dense.SCORE_ELEMENTS", 200)
    torch.testing.assert_close(pages.attend(), whole)


def test_a_cache_in_fp8_is_read_as_it_was_rounded() -> None:
    """Also in the step that stores: else a chunk's cut or a cache hit would change the outputs."""
    pages = Pages(PLAIN, [(9, 9), (21, 4), (6, 1)], torch.float32)
    scales = torch.tensor([[0.25, 2.0], [0.5, 1.0]])

    def rounded(x: torch.Tensor, which: int) -> torch.Tensor:
        factor = scales[which, :, None]
        return (x / factor).to(FP8_CACHE).float() * factor

    pages.k = [rounded(k, 0) for k in pages.k]
    pages.v = [rounded(v, 1) for v in pages.v]
    wanted = pages.reference()
    old = pages.cache
    pages.cache = KVCache(
        [PLAIN], old.num_blocks, BLOCK_SIZE, torch.float32, torch.device("cpu"), [scales]
    )
    for row, (num_keys, num_queries) in enumerate(pages.rows):
        past = torch.arange(num_keys - num_queries)
        slots = pages.tables[row].long()[past // BLOCK_SIZE] * BLOCK_SIZE + past % BLOCK_SIZE
        key_rows = slots + slots // BLOCK_SIZE * BLOCK_SIZE
        cells = Cells(pages.cache.layers[0].flatten(0, 2), key_rows, BLOCK_SIZE, scales=scales)
        cells.store(pages.k[row][: len(past)], pages.v[row][: len(past)])
    # What is rounded already is stored as it is, so that the reference is exact.
    torch.testing.assert_close(pages.attend().double(), wanted, rtol=1e-5, atol=1e-5)
