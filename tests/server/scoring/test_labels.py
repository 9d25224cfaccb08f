"""The tree of labels against probabilities summed over whole label sequences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.scoring.labels import LabelError, LabelTree

VOCAB = 4


def model(prefix: tuple[int, ...]) -> np.ndarray:
    """float64 [VOCAB]: log p(token | prefix) of a made-up model."""
    row = np.sin(np.arange(VOCAB) * 3.7 + sum((i + 2) * t for i, t in enumerate(prefix))) * 2
    table: np.ndarray = row - np.logaddexp.reduce(row)
    return table


def read(tree: LabelTree) -> tuple[np.ndarray, np.ndarray]:
    """What the engine would read after one item."""
    values, others, m = [], [], 0
    for branch, count in tree.branches:
        for depth in range(len(branch) - count + 1, len(branch) + 1):
            row, ids = model(branch[:depth]), tree.id_lists[m]
            values.append(row[ids])
            rest = np.delete(row, ids[ids >= 0])
            others.append(np.logaddexp.reduce(rest) if len(rest) else -np.inf)
            m += 1
    assert m == len(tree.id_lists), "each node is read once"
    return np.array([values], dtype=np.float32), np.array([others], dtype=np.float32)


labels = st.lists(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4).map(tuple), min_size=1, max_size=6
)


@given(labels)
def test_labels_and_others_share_all_the_mass(asked: list[tuple[int, ...]]) -> None:
    prefixes = any(
        a == b[: len(a)] for a, b in itertools.permutations(asked, 2)
    )  # equal labels too
    if prefixes:
        with pytest.raises(LabelError):
            LabelTree.of(asked)
        return
    tree = LabelTree.of(asked)
    logprobs, others = tree.logprobs(*read(tree))
    want = [sum(model(label[:n])[t] for n, t in enumerate(label)) for label in asked]
    np.testing.assert_allclose(logprobs[0], want, atol=1e-6)
    whole = [np.exp(w) for w in want]
    assert sum(whole) + np.exp(others[0]) == pytest.approx(1.0, abs=1e-6)


def test_one_token_labels_need_one_position() -> None:
    tree = LabelTree.of([(7,), (3,), (9,)])
    assert tree.branches == [((), 1)]
    assert tree.id_lists.tolist() == [[7, 3, 9]]


def test_shared_beginnings_are_read_once() -> None:
    tree = LabelTree.of([(1, 2, 3), (1, 2, 4), (1, 5, 6), (8,)])
    assert tree.branches == [((1, 2), 3), ((1, 5), 1)]
    assert tree.id_lists.tolist() == [[1, 8], [2, 5], [3, 4], [6, -1]]


def test_errors_name_both_labels() -> None:
    with pytest.raises(LabelError, match=r"\[1\] at \[2\], a prefix of \[1, 2\] at \[0\]"):
        LabelTree.of([(1, 2), (5,), (1,)])
    with pytest.raises(LabelError, match=r"the same as"):
        LabelTree.of([(1,), (1,)])


def test_impossible_labels_leave_their_mass() -> None:
    tree = LabelTree.of([(0, 1), (2,)])
    values = np.array([[[-np.inf, np.log(0.25)], [np.log(0.5), 0.0]]], dtype=np.float32)
    logprobs, others = tree.logprobs(values, np.log([[0.75, 0.5]]).astype(np.float32))
    assert logprobs[0, 0] == -np.inf
    assert np.exp(others[0]) == pytest.approx(0.75)
