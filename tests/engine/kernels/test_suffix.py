"""The suffix kernels against their torch twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.kernels import suffix as suffix_kernels
from engine.memory.recent_outputs import RecentOutputs
from engine.speculation.suffix import suffix_drafts_torch
from engine.speculative_config import SuffixRules
from sampling.device.mirror import publish
from tests.engine.kernels.where import DEVICES

LENGTHS = [1, 2, 3, 15, 16, 17, 150, 299, 300]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("rules", "num_tokens", "with_others"),
    [
        (SuffixRules(1, 1.0, 0.0), 1, False),
        (SuffixRules(24, 1.0, 0.1), 16, True),
        (SuffixRules(32, 2.5, 0.3), 5, False),
    ],
)
def test_suffix_drafts(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    rules: SuffixRules,
    num_tokens: int,
    with_others: bool,
) -> None:
    """Histories of several blocks, full ones included, with more places than vote; of one token."""
    monkeypatch.setattr(suffix_kernels, "BLOCK", 32)
    generator = torch.Generator().manual_seed(0)
    history = torch.randint(3, (len(LENGTHS), 300), generator=generator, dtype=torch.int32)
    history[4] = torch.arange(300)  # nothing to be found
    history[8, 100:300] = history[8, 0:200].clone()  # long matches
    rows, lengths = torch.arange(len(LENGTHS), dtype=torch.int32), torch.tensor(LENGTHS)
    recent = RecentOutputs(9, len(LENGTHS), torch.device("cpu"), 96) if with_others else None
    others: tuple[torch.Tensor, ...] = ()
    if recent is not None:
        outputs = torch.randint(3, (4, 30), generator=generator, dtype=torch.int32).numpy()
        publish(recent.take(list(np.ascontiguousarray(outputs)), []))
        recent.readers[::2] = 1
        others = (recent.tokens.to(device), recent.readers.to(device))
    expected = suffix_drafts_torch(history, rows, lengths, num_tokens, rules, recent)
    drafts = suffix_kernels.suffix_drafts_triton(
        history.to(device), rows.to(device), lengths.to(device), num_tokens, *rules, *others
    )
    assert drafts.cpu().tolist() == expected.tolist()
    assert (expected >= 0).any()
