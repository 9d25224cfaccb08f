"""Rows that draft, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sampling.batch import SamplingBatch
from sampling.params import SamplingParams
from sampling.rows import SamplingRows

POSITION, NUM_DRAFTS = 12, 4

PARAMS: list[dict[str, Any]] = [
    {"constrained": True},  # the mask of a grammar is not one that drafts obey
    {"temperature": 0.0},
    {"temperature": 0.4, "top_k": 3, "presence_penalty": 2.0, "logit_bias": {5: 50.0}},
    {"allowed_token_ids": tuple(range(0, 100, 3))},
    # At the position of the first draft 10 tokens are out: `min_tokens` holds for that one alone.
    {"bad_words": ((3,), (2, 4)), "min_tokens": 11, "stop_token_ids": tuple(range(8, 30))},
    {"temperature": 1e-42},
    {"temperature": 1e300},
]

N = 2 * len(PARAMS)


def make_rows(
    vocab_size: int, device: str = "cpu", wishes: list[dict[str, Any]] = PARAMS
) -> tuple[SamplingBatch, SamplingRows]:
    """A batch of N rows in which logit row N - 1 - i belongs to row i; the masks allow nothing."""
    history = torch.full((N, 32), 2, dtype=torch.int32, device=device)
    rows = SamplingRows(N, vocab_size, torch.device(device), history=history, max_masks=1)
    for row in range(N):
        params = SamplingParams(**wishes[row % len(wishes)])
        rows.add(row, params, seed=900 - row, choice=row % 2, prompt_len=2, num_tokens=9)
    rows.flush()
    rows_np = np.arange(N, dtype=np.int32)[::-1].copy()
    positions = torch.full((N,), POSITION, device=device)
    index = torch.from_numpy(rows_np.copy()).to(device)
    slots = torch.zeros_like(index)
    return SamplingBatch(index, positions, rows_np, rows.needs(rows_np), mask_slots=slots), rows


def make_logits(width: int) -> Tensor:
    return torch.randn(N, width, generator=torch.Generator().manual_seed(width)) * 2
