"""Labels of one or several tokens as a tree: which positions are read, and what they add up to.

A node is a proper prefix of a label, the empty one at the root; its children are the tokens that
come next in some label. No label is a prefix of another, so labels are disjoint events and

    log P(label)  = sum of log p(token | prefix) along the label's path
    log P(others) = log sum over nodes of P(node) * (1 - sum of p(child | node)),

the second because what begins with no label leaves the tree at exactly one node.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.arrays import Float32Array, Int32Array

Label = tuple[int, ...]
Float64Array = npt.NDArray[np.float64]


class LabelError(ValueError):
    """Two labels are equal, or one is a prefix of another."""


class _PathStep(NamedTuple):
    """The tokens at one place of labels.

    Attributes:
        labels: those that have so many tokens. nodes, columns: where their tokens are read.
    """

    labels: slice | list[int]
    nodes: list[int]
    columns: list[int]


@dataclass(frozen=True)
class LabelTree:
    """The tree of some labels.

    Attributes:
        branches: the tokens that follow every item in turn, with the number of nodes that are read
            at the last positions; each node is read once.
        id_lists: int32 [M, J], the children of each node in the order in which nodes are read,
            padded with -1.
    """

    branches: list[tuple[Label, int]]
    id_lists: Int32Array
    _num_labels: int
    _steps: list[_PathStep]
    _parents: list[tuple[int, int] | None]

    @classmethod
    def of(cls, labels: list[Label]) -> LabelTree:
        """Make the tree; raises `LabelError` where a label is a prefix of another, or the same."""
        _check_disjoint(labels)
        nodes = sorted({label[:n] for label in labels for n in range(len(label))})
        # Sorted, a node's descendants follow it: one that nothing follows ends a branch.
        order: list[Label] = []
        branches: list[tuple[Label, int]] = []
        for node, following in zip(nodes, [*nodes[1:], None], strict=True):
            order.append(node)
            if following is None or following[: len(node)] != node:
                branches.append((node, len(order) - sum(count for _, count in branches)))
        index = {node: i for i, node in enumerate(order)}
        children: list[list[int]] = [[] for _ in order]
        for label in labels:
            for n, token_id in enumerate(label):
                own = children[index[label[:n]]]
                if token_id not in own:
                    own.append(token_id)

        def step(prefix: Label, token_id: int) -> tuple[int, int]:
            node = index[prefix]
            return node, children[node].index(token_id)

        id_lists = np.full((len(order), max(map(len, children))), -1, dtype=np.int32)
        for row, own in zip(id_lists, children, strict=True):
            row[: len(own)] = own
        return cls(
            branches=branches,
            id_lists=id_lists,
            _num_labels=len(labels),
            _steps=_steps(
                [[step(label[:n], label[n]) for n in range(len(label))] for label in labels]
            ),
            _parents=[step(node[:-1], node[-1]) if node else None for node in order],
        )

    def logprobs(
        self, values: Float32Array, others: Float32Array
    ) -> tuple[Float64Array, Float64Array]:
        """The logprobs of every label, [N, L], and of anything else, [N], for N items.

        Args:
            values: float32 [N, M, J or more], logprobs of `id_lists` as the engine read them.
            others: float32 [N, M], logprobs of all other ids together.
        """
        by_node, rest = values.astype(np.float64), others.astype(np.float64)
        labels = np.zeros((len(by_node), self._num_labels))
        for these, nodes, columns in self._steps:
            labels[:, these] += by_node[:, nodes, columns]
        reached = np.zeros_like(rest)
        for node, parent in enumerate(self._parents):  # a node's parent comes before it
            if parent is not None:
                m, j = parent
                reached[:, node] = reached[:, m] + by_node[:, m, j]
        return labels, np.logaddexp.reduce(reached + rest, axis=1)


def _steps(paths: list[list[tuple[int, int]]]) -> list[_PathStep]:
    """The paths of labels as steps that all of them take together."""
    steps = []
    for n in range(max(map(len, paths))):
        there = [label for label, path in enumerate(paths) if len(path) > n]
        nodes, columns = zip(*(paths[label][n] for label in there), strict=True)
        labels = slice(None) if len(there) == len(paths) else there
        steps.append(_PathStep(labels, list(nodes), list(columns)))
    return steps


def _check_disjoint(labels: list[Label]) -> None:
    """Raise `LabelError` for labels that are not disjoint.

    Sorted, a label that is a prefix of others is right before one of them.
    """
    order = sorted(range(len(labels)), key=lambda i: labels[i])
    for first, second in pairwise(order):
        a, b = labels[first], labels[second]
        if b[: len(a)] == a:
            words = "the same as" if a == b else "a prefix of"
            raise LabelError(
                f"hold {list(a)} at [{first}], {words} {list(b)} at [{second}]: labels must "
                "exclude each other"
            )
