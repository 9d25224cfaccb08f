"""How hidden states become embeddings: last tokens' or means, dense layers, normalization."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from engine.arrays import Float32Array, Int32Array
from engine.messages.request import ScoringRequest
from server.config import DenseLayer, Pooling, PoolingMode
from server.scoring.labels import Float64Array
from server.text.shared_prefix import common_prefix

MEAN_TOKENS = 8192
"""Tokens whose states are read at once for means: 128 MiB where a state is of 4,096 numbers."""
LAST_TOKENS = 1 << 16
"""Tokens of a request whose last states are read: the engine computes one while another is made
ready and a third one's vectors are written."""


class EmbeddingPrompts(NamedTuple):
    """Texts whose last tokens' hidden states are asked for, or those of all their tokens.

    Attributes:
        query: what the texts begin with alike; empty where all states are read.
        items: the rest of each text.
        mode: what is made of their states.
    """

    query: Int32Array
    items: list[Int32Array]
    mode: PoolingMode = "last"

    @classmethod
    def of(cls, token_ids: list[Int32Array], mode: PoolingMode) -> list[EmbeddingPrompts]:
        """The prompts of texts, for several requests, in the order of the texts."""
        if mode == "mean":
            groups = _groups(token_ids, MEAN_TOKENS)
            return [cls(np.zeros(0, np.int32), group, mode) for group in groups]
        prefixed = common_prefix([ids.tolist() for ids in token_ids])
        return [cls(prefixed.prefix, group) for group in _groups(prefixed.rests, LAST_TOKENS)]

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the texts."""
        return len(self.query) * len(self.items) + sum(map(len, self.items))

    def request(self, handle: int) -> ScoringRequest:
        """The engine's request."""
        lens = np.array([len(item) for item in self.items], dtype=np.int32)
        return ScoringRequest(
            handle=handle,
            query_token_ids=self.query,
            item_token_ids=np.concatenate(self.items),
            item_lens=lens,
            num_read=lens if self.mode == "mean" else np.ones_like(lens),
            id_lists=np.zeros((1, 0), dtype=np.int32),
            embeds=True,
        )

    def states(self, hidden: Float32Array) -> Float32Array:
        """One state a text, float32 [N, H], of the states that were read, float32 [P, H].

        Means are summed in float64.
        """
        if self.mode == "last":
            return hidden
        ends = np.cumsum([len(item) for item in self.items])
        rows = [each.mean(axis=0, dtype=np.float64) for each in np.split(hidden, ends[:-1])]
        return np.array(rows, dtype=np.float32)


def _groups(token_ids: list[Int32Array], most: int) -> Iterator[list[Int32Array]]:
    """Texts in order, as many together as have `most` tokens, or one that has more."""
    group: list[Int32Array] = []
    size = 0
    for ids in token_ids:
        if group and size + len(ids) > most:
            yield group
            group, size = [], 0
        group.append(ids)
        size += len(ids)
    yield group


def pooled(states: Float32Array, dimensions: int | None, pooling: Pooling) -> Float32Array:
    """Embeddings float32 [N, dimensions] of the texts' states, float32 [N, H].

    Fewer dimensions than the model's are the first ones, as Matryoshka embeddings are cut, and are
    normalized again.
    """
    for layer in pooling.layers:
        states = _dense(states, layer)
    cut: Float64Array = states[:, :dimensions].astype(np.float64)
    if pooling.normalizes:
        lengths = np.linalg.norm(cut, axis=1, keepdims=True)
        cut = cut / np.where(lengths > 0, lengths, 1.0)
    return cut.astype(np.float32)


def _dense(states: Float32Array, layer: DenseLayer) -> Float32Array:
    """The layer's activation of `states @ weight.T + bias`."""
    out: Float32Array = states @ layer.weight.T
    if layer.bias is not None:
        out += layer.bias
    if layer.activation == "tanh":
        return np.tanh(out)
    return np.maximum(out, 0) if layer.activation == "relu" else out
