"""Fragments of JSON: each reads back as what it was made of."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.arrays import LogprobArrays
from server.errors import ApiError
from server.text.json_fragments import (
    MINUS_INFINITY,
    POSITIONS_A_SHOW,
    STEPS_KEPT,
    StepTexts,
    TokenFragments,
    dump,
    id_rows,
    objects_of,
    texts_of,
)

TEXTS = ["a", "b", "\ufffd", "\ufffd", 'é"\n', ""]
RAW = [b"a", b"b", b"\x80", b"\xff", 'é"\n'.encode(), b""]
FRAGMENTS = TokenFragments(TEXTS, RAW)


def step_of(count: int) -> LogprobArrays:
    rng = np.random.default_rng(count)
    return LogprobArrays(
        chosen=-rng.random(count, dtype=np.float32),
        ranks=rng.integers(1, 9, count).astype(np.int32),
        top_ids=rng.integers(0, 99, (count, 3)).astype(np.int32),
        top_logprobs=-rng.random((count, 3), dtype=np.float32),
        explicit=np.zeros((count, 0), dtype=np.float32),
        kept=np.zeros(count, dtype=np.float32),
    )


def test_texts_of_a_step_are_made_once_enough_of_it_is_asked_for() -> None:
    step, steps = step_of(4 * POSITIONS_A_SHOW), StepTexts()
    asked = [steps.position(step, i, 2) for i in range(6)]
    assert asked[:3] == [None] * 3
    for i, found in list(enumerate(asked))[3:]:
        assert found is not None
        assert found.top_ids == step.top_ids[i, :2].tolist()
        assert found.top_values == texts_of(step.top_logprobs[i, :2])
        assert [found.chosen] == texts_of(step.chosen[i : i + 1])
        assert found.rank == step.ranks[i]


def test_positions_that_cannot_be_written_harm_no_other() -> None:
    step, steps = step_of(4), StepTexts()
    step.chosen[1], step.top_logprobs[2, 1], step.top_logprobs[3, 0] = np.nan, np.inf, -np.inf
    found = [steps.position(step, i, 3) for i in range(4)]
    assert [each is None for each in found] == [False, True, True, False]
    assert found[3] is not None
    assert found[3].top_values[0] == str(MINUS_INFINITY)


def test_old_steps_are_forgotten() -> None:
    steps, many = StepTexts(), [step_of(1) for _ in range(STEPS_KEPT + 1)]
    for step in many:
        assert steps.position(step, 0, 1) is not None
    assert len(steps._steps) == STEPS_KEPT


def test_names_and_bytes_of_ids() -> None:
    assert [json.loads(name) for name in FRAGMENTS.names([4, 2, 0], as_ids=False)] == [
        'é"\n',
        "\ufffd",
        "a",
    ]
    assert FRAGMENTS.names([4], as_ids=True) == ['"token_id:4"']
    assert [json.loads(item) for item in FRAGMENTS.byte_lists([4, 3, 5])] == [
        list(RAW[4]),
        [255],
        [],
    ]


def keys(ids: list[int], values: list[float], starts: list[int], *, as_ids: bool) -> list[str]:
    made = FRAGMENTS.keys(
        np.array(ids, dtype=np.int32),
        np.array(values, dtype=np.float32),
        np.array(starts),
        as_ids=as_ids,
    )
    return [json.loads(key.removesuffix(":")) for key in made]


def test_of_ids_with_one_name_the_best_of_a_row_has_it() -> None:
    """Rows [2, 0, 3] and [3, 2]: the higher value first, of equal ones the earlier."""
    made = keys([2, 0, 3, 3, 2], [-3, -1, -2, -1, -1], [0, 3], as_ids=False)
    assert made == ["token_id:2", "a", "\ufffd", "\ufffd", "token_id:2"]
    assert keys([2, 3], [-1, -2], [0], as_ids=True) == ["token_id:2", "token_id:3"]


def test_rows_of_kept_ids() -> None:
    ids = np.array([[7, 8, 9], [1, 2, 3]], dtype=np.int32)
    keep = np.array([[True, False, True], [True, True, False]])
    assert json.loads(f"[{id_rows(ids, keep)}]") == [[7, 9], [1, 2]]


def test_objects() -> None:
    made = objects_of(['"a":', '"b":', '"a":'], [["1", "2", "3"]], [0, 2])
    assert json.loads(f"[{made}]") == [{"a": 1, "b": 2}, {"a": 3}]
    two = objects_of(['"a":{"x":', '"b":{"x":'], [["1", "2"], [',"y":3}', ',"y":4}']], [0])
    assert json.loads(two) == {"a": {"x": 1, "y": 3}, "b": {"x": 2, "y": 4}}
    assert objects_of([], [[]], []) == ""


def test_minus_infinity() -> None:
    text = dump(np.array([[-np.inf, -1.5]], dtype=np.float32))
    assert json.loads(text) == [[MINUS_INFINITY, -1.5]]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_never_leaves(bad: float) -> None:
    with pytest.raises(ApiError) as caught:
        dump(np.array([bad], dtype=np.float32))
    assert (caught.value.status, caught.value.code) == (500, "nan_logits")


@pytest.mark.parametrize("values", [[], [1.5], [1.5, -np.inf, 1e-30]])
def test_texts_of_a_flat_array(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    want = [MINUS_INFINITY if v == -np.inf else np.float32(v) for v in values]
    assert [np.float32(json.loads(text)) for text in texts_of(array)] == want


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_decimals_round_to_the_same_float32(values: list[Any]) -> None:
    array = np.array(values, dtype=np.float32)
    assert (np.array(json.loads(dump(array)), dtype=np.float32) == array).all()
