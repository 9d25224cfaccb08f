"""When rows that begin alike are worth a second kernel."""

from __future__ import annotations

import numpy as np

from engine.contracts import shared_blocks


def test_sharing_pays_where_rows_leave_tiles_idle() -> None:
    def pays(counts: list[int], num_keys: int) -> bool:
        return shared_blocks.pays_to_share(np.array(counts), num_keys)

    assert pays([32] * 256, 1024)
    assert pays([1] * 10, 128)
    assert not pays([32] * 256, 0)
    assert not pays([32] * 4, 128)  # three tiles less
    assert not pays([5000], 10**6)
    assert not pays([128] * 64, 10**6)
