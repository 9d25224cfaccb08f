"""The n-gram kernel against its torch twin."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import ngram as ngram_kernels
from engine.speculation.ngram import ngram_drafts_torch
from tests.engine.kernels.where import DEVICES


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("min_n", "max_n", "num_tokens"), [(1, 1, 1), (2, 4, 5), (3, 3, 16)])
def test_ngram_drafts(
    monkeypatch: pytest.MonkeyPatch, device: str, min_n: int, max_n: int, num_tokens: int
) -> None:
    """Histories of several blocks, full ones included, and of one token."""
    monkeypatch.setattr(ngram_kernels, "BLOCK", 16)
    generator = torch.Generator().manual_seed(0)
    history = torch.randint(5, (12, 70), generator=generator, dtype=torch.int32)
    history[5] = torch.arange(70)  # nothing to be found
    rows = torch.randperm(12, generator=generator).to(torch.int32)
    lengths = torch.tensor([1, 2, 3, 16, 17, 31, 32, 33, 50, 64, 69, 70])
    settings = (num_tokens, min_n, max_n)
    drafts = ngram_kernels.ngram_drafts_triton(
        history.to(device), rows.to(device), lengths.to(device), *settings
    )
    expected = ngram_drafts_torch(history, rows, lengths, *settings)
    assert torch.equal(drafts.cpu(), expected)
    assert (expected >= 0).any()
