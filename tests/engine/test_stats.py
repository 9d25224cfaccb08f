"""Statistics of drafts, from their counts."""

from __future__ import annotations

import numpy as np
import pytest

from engine.stats import DraftStats


def test_fields_are_counts_in_order() -> None:
    stats = DraftStats.of(np.array([10, 38, 9, 4, 2], dtype=np.int64))
    assert stats == DraftStats(num_drafts=10, num_draft_tokens=38, accepted_at=(9, 4, 2))
    assert stats.num_accepted == 15
    assert stats.acceptance == pytest.approx([0.9, 0.4, 0.2])


def test_without_drafts_no_draft_was_accepted() -> None:
    stats = DraftStats.of(np.zeros(4, dtype=np.int64))
    assert stats.num_accepted == 0
    assert stats.acceptance == [0.0, 0.0]
