from __future__ import annotations

import numpy as np
import pytest

from engine.planning.token_counts import token_counts


@pytest.mark.parametrize(
    ("pending", "num_decoding", "most_tokens", "most_prompt", "expected"),
    [
        ([1, 1, 5], 2, 10, 10, [1, 1, 5]),  # all fit
        ([1, 1, 9], 2, 10, 10, [1, 1, 8]),  # a prompt gets what is left
        ([4, 4, 4], 3, 10, 10, [4, 4, 0]),  # a row that decodes gets all or nothing
        ([1, 6, 6], 1, 20, 8, [1, 6, 2]),  # prompts have a bound of their own
        ([1, 6, 6], 1, 20, 0, [1, 0, 0]),
        ([3, 3], 2, 2, 9, [0, 0]),
        ([5, 5, 5], 0, 7, 100, [5, 2, 0]),
        ([], 0, 7, 7, []),
    ],
)
def test_shares_in_order(
    pending: list[int],
    num_decoding: int,
    most_tokens: int,
    most_prompt: int,
    expected: list[int],
) -> None:
    decodes = np.arange(len(pending)) < num_decoding
    counts = token_counts(np.array(pending, dtype=np.int64), decodes, most_tokens, most_prompt)
    assert counts.tolist() == expected
