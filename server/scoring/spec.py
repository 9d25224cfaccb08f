"""What a scoring endpoint asks of the engine: a query, items after it, and labels of each item."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engine.arrays import Float32Array, Int32Array, Int64Array
from engine.messages.request import Branches, ScoringRequest
from engine.messages.step_output import ItemScores
from server.schema.ids import IdLists
from server.scoring.labels import Float64Array, LabelTree


class LabelLogprobs(NamedTuple):
    """The logprobs of n items that have the same L labels.

    Attributes:
        items: int64 [n], which items of the request they are, in order.
        labels: float64 [n, L], the logprob of every label.
        others: float64 [n], the logprob of all continuations that begin with no label, together.
        first: float32 [n], the logprob of the best first token of a label.
        best_ids: int32 [n], the best first token that begins no label.
        best: float32 [n], its logprob.
        log_sums: float64 [n], the log-sum-exp of the logits that the first token is drawn from.
    """

    items: Int64Array
    labels: Float64Array
    others: Float64Array
    first: Float32Array
    best_ids: Int32Array
    best: Float32Array
    log_sums: Float64Array


@dataclass(frozen=True, slots=True)
class ScoringSpec:
    """A scoring request in token ids: N items, each followed by the labels of one of K trees.

    Attributes:
        query: int32 [Q]; may be empty.
        items: N lists of ids, none of them empty.
        trees: the K trees, all of them in use.
        tree_of_item: int64 [N], index of each item's tree.
        priority, cache_salt: as `ScoringRequest` has them.
    """

    query: Int32Array
    items: IdLists
    trees: list[LabelTree]
    tree_of_item: Int64Array
    priority: int = 0
    cache_salt: str = ""

    @property
    def longest(self) -> int:
        """The most tokens that one continuation has, its query included."""
        depths = [max(len(branch) for branch, _ in tree.branches) for tree in self.trees]
        if len(depths) == 1:
            return len(self.query) + int(self.items.lens.max()) + depths[0]
        return len(self.query) + int((self.items.lens + np.array(depths)[self.tree_of_item]).max())

    def request(self, handle: int) -> ScoringRequest:
        """The engine's request."""
        lens = self._by_item([np.array([len(b) for b, _ in t.branches]) for t in self.trees])
        branches = None
        if len(lens) > len(self.items.lens) or lens.any():
            tokens = [np.array([i for b, _ in t.branches for i in b]) for t in self.trees]
            counts = np.array([len(tree.branches) for tree in self.trees], dtype=np.int32)
            token_ids = self._by_item(tokens)
            branches = Branches(counts=counts[self.tree_of_item], lens=lens, token_ids=token_ids)
        return ScoringRequest(
            handle=handle,
            query_token_ids=self.query,
            item_token_ids=self.items.token_ids,
            item_lens=self.items.lens,
            branches=branches,
            num_read=self._by_item([np.array([n for _, n in t.branches]) for t in self.trees]),
            id_lists=self._id_lists(),
            priority=self.priority,
            cache_salt=self.cache_salt,
        )

    def _by_item(self, of_tree: list[np.ndarray]) -> Int32Array:
        """What each item's tree has, int32, item after item."""
        if len(of_tree) == 1:
            return np.tile(of_tree[0].astype(np.int32), len(self.items.lens))
        return np.concatenate([of_tree[k] for k in self.tree_of_item.tolist()]).astype(np.int32)

    def _id_lists(self) -> Int32Array:
        """The lists of all positions read; those of one tree are used in turn."""
        if len(self.trees) == 1:
            return self.trees[0].id_lists
        width = max(tree.id_lists.shape[1] for tree in self.trees)
        padded = [
            np.pad(lists, ((0, 0), (0, width - lists.shape[1])), constant_values=-1)
            for lists in (tree.id_lists for tree in self.trees)
        ]
        return np.concatenate([padded[k] for k in self.tree_of_item.tolist()])

    def logprobs(self, scores: ItemScores) -> list[LabelLogprobs]:
        """What the engine's answer says of each tree's items."""
        found = []
        for tree, items, places in self._places():
            labels, others = tree.logprobs(scores.values[places], scores.others[places])
            roots = places[:, 0]  # the root is the first node
            num_first = int((tree.id_lists[0] >= 0).sum())
            first = scores.values[roots, :num_first].max(axis=1)
            best_ids, best = scores.best_ids[roots], scores.best[roots]
            found.append(
                LabelLogprobs(items, labels, others, first, best_ids, best, scores.log_sums[roots])
            )
        return found

    def _places(self) -> Iterator[tuple[LabelTree, Int64Array, Int64Array]]:
        """Each tree, its items, and the positions at which their nodes are read, int64 [n, M]."""
        if len(self.trees) == 1:
            tree, count = self.trees[0], len(self.items.lens)
            places = np.arange(count * len(tree.id_lists)).reshape(count, -1)
            yield tree, np.arange(count), places
            return
        num_nodes = np.array([len(tree.id_lists) for tree in self.trees])[self.tree_of_item]
        firsts = np.cumsum(num_nodes) - num_nodes
        for k, tree in enumerate(self.trees):
            items = np.flatnonzero(self.tree_of_item == k)
            yield tree, items, firsts[items, None] + np.arange(len(tree.id_lists))
