"""Scoring specs of items with labels of their own, as the engine reads them."""

from __future__ import annotations

import numpy as np

from server.schema.ids import IdLists
from server.scoring.labels import Label, LabelTree
from server.scoring.spec import ScoringSpec
from tests.fake_values import item_scores, value_row

QUERY = np.array([1, 2, 3], dtype=np.int32)
LABELS: list[list[Label]] = [
    [(70,), (71,)],
    [(1, 2, 3), (1, 5), (4,)],
    [(9,), (8, 7), (8, 6), (3, 5)],
]


def spec(tree_of_item: list[int], lens: list[int]) -> ScoringSpec:
    items = IdLists(np.arange(100, 100 + sum(lens), dtype=np.int32), np.array(lens, dtype=np.int32))
    trees = [LabelTree.of(labels) for labels in LABELS[: max(tree_of_item) + 1]]
    return ScoringSpec(QUERY, items, trees, np.array(tree_of_item))


def _logprob(label: tuple[int, ...], position: int) -> float:
    """The fake's logprob of a label whose first token is drawn after `position` tokens."""
    total = 0.0
    for n, token_id in enumerate(label):
        row = value_row(position + n).astype(np.float64)
        total += row[token_id] - np.logaddexp.reduce(row)
    return total


def _check(asked: ScoringSpec) -> None:
    seen = []
    for k, found in enumerate(asked.logprobs(item_scores(asked.request(7)))):
        for item, labels, others in zip(found.items, found.labels, found.others, strict=True):
            assert asked.tree_of_item[item] == k
            position = len(QUERY) + int(asked.items.lens[item])
            want = [_logprob(label, position) for label in LABELS[k]]
            np.testing.assert_allclose(labels, want, rtol=0, atol=1e-5)  # float32 of about -10
            assert abs(np.exp(labels).sum() + np.exp(others) - 1) < 1e-5
            seen.append(int(item))
        for item, best_id in zip(found.items, found.best_ids, strict=True):
            row = value_row(len(QUERY) + int(asked.items.lens[item]))
            row[[label[0] for label in LABELS[k]]] = -np.inf
            assert best_id == row.argmax()
    assert sorted(seen) == list(range(len(asked.items.lens)))


def test_items_of_different_labels_get_their_own_logprobs() -> None:
    asked = spec([0, 2, 1, 2, 0], [4, 2, 6, 1, 3])
    request = asked.request(7)
    assert request.branches is not None
    assert request.branches.counts.tolist() == [1, 2, 1, 2, 1]
    assert request.branches.lens.tolist() == [0, 1, 1, 2, 1, 1, 0]
    assert request.branches.token_ids.tolist() == [3, 8, 1, 2, 3, 8]
    assert request.num_read.tolist() == [1, 2, 1, 3, 2, 1, 1]
    assert len(request.id_lists) == request.num_read.sum()
    assert asked.longest == 3 + 6 + 2
    _check(asked)


def test_items_of_the_same_labels_use_their_lists_in_turn() -> None:
    for tree in (0, 2):
        trees = [LabelTree.of(LABELS[tree])]
        asked = ScoringSpec(QUERY, spec([0] * 3, [2, 3, 1]).items, trees, np.zeros(3, np.int64))
        assert len(asked.request(1).id_lists) == len(trees[0].id_lists)
        assert (asked.request(1).branches is None) == (tree == 0)
    _check(spec([0] * 3, [2, 3, 1]))
