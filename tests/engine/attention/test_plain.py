"""Paged attention against a dense float64 reference, every feature, ragged rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.attention.plain import PlainAttention
from engine.memory.pages import FP8_CACHE, Cells, KVCache
from tests.engine.attention.paged_rows import (
    BLOCK_SIZE,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    PLAIN,
    SPECS,
    STEPS,
    Pages,
    tolerance,
)


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
