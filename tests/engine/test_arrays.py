"""Logprob arrays: positions, widths, parts."""

from __future__ import annotations

import numpy as np
import pytest

from engine.arrays import LogprobArrays
from tests.engine.logprob_cases import assert_same, logprob_arrays


def test_positions_of_logprob_arrays() -> None:
    arrays = logprob_arrays(5, 3, 2)
    for index in (slice(1, 3), np.array([4, 0]), np.array([True, False, False, True, False])):
        part = arrays.at(index)
        for field in LogprobArrays.__struct_fields__:
            np.testing.assert_array_equal(getattr(part, field), getattr(arrays, field)[index])
    assert np.shares_memory(arrays.at(slice(1, 3)).explicit, arrays.explicit)


def test_narrow_keeps_the_first_columns() -> None:
    arrays = logprob_arrays(4, 3, 2)
    assert (arrays.num_top, arrays.num_explicit) == (3, 2)
    narrow = arrays.narrow(2, 1)
    np.testing.assert_array_equal(narrow.top_ids, arrays.top_ids[:, :2])
    np.testing.assert_array_equal(narrow.top_logprobs, arrays.top_logprobs[:, :2])
    np.testing.assert_array_equal(narrow.explicit, arrays.explicit[:, :1])
    np.testing.assert_array_equal(narrow.chosen, arrays.chosen)
    np.testing.assert_array_equal(narrow.ranks, arrays.ranks)
    assert_same(arrays.narrow(9, 9), arrays)


def test_parts_join_to_the_whole_and_a_copy_is_one() -> None:
    arrays = logprob_arrays(5, 2, 1)
    parts = [arrays.at(slice(0, 2)), arrays.at(slice(2, 2)), arrays.at(slice(2, 5))]
    assert_same(LogprobArrays.concat(parts), arrays)
    copy = arrays.copy()
    assert_same(copy, arrays)
    for field in LogprobArrays.__struct_fields__:
        assert not np.shares_memory(getattr(copy, field), getattr(arrays, field))


@pytest.mark.parametrize(("num_top", "num_explicit"), [(3, 0), (1, 2), (2, 1)])
def test_put_writes_as_far_as_both_are_wide(num_top: int, num_explicit: int) -> None:
    """Into arrays of two tops and one id, at positions on two axes."""
    arrays, ring = logprob_arrays(2, num_top, num_explicit), LogprobArrays.zeros((3, 4), 2, 1)
    ring.put((np.array([2, 0]), np.array([1, 3])), arrays)
    top, explicit = min(num_top, 2), min(num_explicit, 1)
    for i, place in enumerate([(2, 1), (0, 3)]):
        assert ring.chosen[place] == arrays.chosen[i]
        assert ring.ranks[place] == arrays.ranks[i]
        assert ring.top_ids[place][:top].tolist() == arrays.top_ids[i, :top].tolist()
        assert ring.top_logprobs[place][:top].tolist() == arrays.top_logprobs[i, :top].tolist()
        assert ring.explicit[place][:explicit].tolist() == arrays.explicit[i, :explicit].tolist()
        assert not ring.top_logprobs[place][top:].any()
    assert np.count_nonzero(ring.chosen) == 2, "nothing is written elsewhere"
