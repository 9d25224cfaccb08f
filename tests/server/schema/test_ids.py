"""Token ids: arrays of integers in range, and of nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import ApiError
from server.schema.ids import ID_MAX, check_vocab, good_ids, id_array


@given(st.lists(st.integers(0, ID_MAX)))
def test_ids_come_back(token_ids: list[int]) -> None:
    for made in (id_array(token_ids), good_ids(token_ids)):
        assert made is not None
        assert made.dtype == np.int32
        assert made.tolist() == token_ids


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("ab", "must be a list of token ids"),
        ([1, "2"], 'integers only, got "2"'),
        ([1, True], "integers only, got true"),
        ([False, 5], "integers only, got false"),
        ([0.0], "integers only, got 0.0"),
        ([None], "integers only, got null"),
        ([0, -1], f"in [0, {ID_MAX}], got -1"),
        ([ID_MAX + 1], f"got {ID_MAX + 1}"),
        ([2**80], "got 1208925819614629174706176"),
    ],
)
def test_refused(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match="must") as caught:
        id_array(value)
    assert words in str(caught.value)
    if isinstance(value, list):
        assert good_ids(value) is None


def test_check_vocab_names_the_first_odd_id() -> None:
    check_vocab("prompt", np.array([0, 9], dtype=np.int32), 10)
    with pytest.raises(ApiError, match="holds id 10; ids of this model are 0 to 9"):
        check_vocab("prompt", np.array([3, 10, 11], dtype=np.int32), 10)
