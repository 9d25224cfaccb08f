"""Invariant attention on a CPU against float64, and the same bits in every step."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.attention.invariant import InvariantPlainAttention
from tests.engine.attention.paged_rows import SPECS, STEPS, Pages, tolerance


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", SPECS)
def test_float32(name: str, step: str) -> None:
    pages = Pages(SPECS[name], STEPS[step], torch.float32)
    out = pages.attend(make=InvariantPlainAttention)
    torch.testing.assert_close(out.double(), pages.reference(), rtol=0, atol=tolerance(pages))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["plain", "window-7", "everything"])
def test_narrow_types(name: str, dtype: torch.dtype) -> None:
    pages = Pages(SPECS[name], STEPS["mixed"], dtype)
    out = pages.attend(make=InvariantPlainAttention)
    torch.testing.assert_close(out.double(), pages.reference(), rtol=0, atol=tolerance(pages))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.is_causal])
def test_steps_change_no_bit(name: str, dtype: torch.dtype) -> None:
    """Whole prompts together; then in chunks, as lone tokens, and beside others."""
    pages = Pages(SPECS[name], [(1300, 40), (70, 70), (129, 20)], dtype)
    whole = list(torch.split(pages.attend(make=InvariantPlainAttention), [40, 70, 20]))
    for parts in (
        [(1, 0, 1)],
        [(0, 1260, 1262), (1, 0, 64), (2, 127, 129)],
        [(1, 69, 70), (0, 1299, 1300), (2, 128, 129)],
        [(2, 109, 129), (1, 10, 11)],
        [(0, 1270, 1300)],
    ):
        out = _step(pages, parts)
        for (row, first, last), own in zip(parts, out, strict=True):
            before = pages.rows[row][0] - pages.rows[row][1]
            wanted = whole[row][first - before : last - before]
            assert torch.equal(own, wanted), (row, first, last)


def _step(pages: Pages, parts: list[tuple[int, int, int]]) -> list[torch.Tensor]:
    """What tokens first:last of rows attend to in a step of their own; the cache is filled."""
    ends = np.cumsum([count for _, count in pages.rows])
    firsts = [int(end) - keys for end, (keys, _) in zip(ends, pages.rows, strict=True)]
    tokens = torch.cat([torch.arange(first, last) + firsts[row] for row, first, last in parts])
    lengths = [last - first for _, first, last in parts]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    seen = np.array([last for _, _, last in parts], dtype=np.int32)
    cache = copy.deepcopy(pages.cache)  # a row's first token clears its block
    backend = InvariantPlainAttention([pages.spec], cache)
    backend.begin(
        replace(
            pages.inputs(),
            query_starts=torch.from_numpy(starts),
            query_starts_np=starts,
            seq_lens=torch.from_numpy(seen),
            seq_lens_np=seen,
            block_tables=pages.tables[[row for row, _, _ in parts]],
            slots=pages.slots[tokens],
            max_query_len=max(lengths),
        )
    )
    k, v = (
        torch.cat([rows[row][first:last] for row, first, last in parts])
        for rows in (pages.k, pages.v)
    )
    return list(torch.split(backend.attend(0, pages.q[tokens], k, v), lengths))
