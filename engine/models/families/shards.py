"""A rank's parts of a fused decoder's tensors, by a table of what each name is divided by.

Products that make heads or columns are divided by their outputs, so that heads are whole; output
and down products by their inputs, so that their results are parts of a sum over ranks. Several
projections in one tensor are divided each. What is in none of the table's rows is on every rank:
norms, routers, the embedding, and what compresses keys and values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from engine.models.families.shares import (
    EXPERT,
    HEADS,
    INNER,
    KEYS,
    SHARED,
    VOCAB,
    RankShare,
    Shares,
)
from engine.models.formats.reader import OwnedPart
from engine.models.weights.sources import Checkpoint, WeightSource

_DIVIDED: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    (r"^lm_head\.(weight|bias)", 0, (VOCAB,)),
    (r"self_attn\.(q_proj|q_b_proj|kv_b_proj)\.(weight|bias)", 0, (HEADS,)),
    (r"self_attn\.[kv]_proj\.(weight|bias)", 0, (KEYS,)),
    (r"self_attn\.qkv_proj\.(weight|bias)", 0, (HEADS, KEYS, KEYS)),
    (r"self_attn\.sinks", 0, (HEADS,)),
    (r"self_attn\.(o_proj|dense)\.weight", 1, (HEADS,)),
    (r"mlp\.(gate_proj|up_proj|fc1|c_fc)\.(weight|bias)", 0, (INNER,)),
    (r"mlp\.gate_up_proj\.(weight|bias)", 0, (INNER, INNER)),
    (r"mlp\.(down_proj|fc2|c_proj)\.weight", 1, (INNER,)),
    (r"\.experts\.\d+\.(gate_proj|up_proj|w1|w3)\.weight", 0, (EXPERT,)),
    (r"\.experts\.\d+\.(down_proj|w2)\.weight", 1, (EXPERT,)),
    (r"\.experts\.gate_up_proj", 2, (EXPERT,)),  # gate and up of a column are neighbours
    (r"\.experts\.gate_up_proj_(bias|blocks|scales)", 1, (EXPERT,)),
    (r"\.experts\.down_proj", 1, (EXPERT,)),
    (r"\.experts\.down_proj_(blocks|scales)", 2, (EXPERT,)),
    (r"\.shared_experts?\.(gate_proj|up_proj)\.weight", 0, (SHARED,)),
    (r"\.shared_experts?\.down_proj\.weight", 1, (SHARED,)),
)
"""Expressions that names end with, the dimension that is divided, and by what; where it is by
several, they lie one behind the other in that dimension."""
_WHOLE_NORMS = (
    (r"self_attn\.q_norm\.weight", 0, (HEADS,)),
    (r"self_attn\.k_norm\.weight", 0, (KEYS,)),
)
"""The same of norms over all heads; those of each head are on every rank."""
_OF_SUMS = re.compile(r"\.(o_proj|dense|down_proj|fc2|c_proj)\.bias$|\.experts\.down_proj_bias$")
"""Biases of sums over ranks, which are added once."""


class ShardedWeights:
    """A `WeightSource` that gives a rank its parts of another's tensors.

    Args:
        source: of whole tensors.
        whole_norms: norms of queries and keys are over all heads together.

    Attributes:
        size: how many ranks there are.
    """

    def __init__(
        self, source: WeightSource, shares: Shares, rank: int, size: int, *, whole_norms: bool
    ) -> None:
        self._source, self._shares, self._rank = source, shares, rank
        self.size = size
        rows = (*_DIVIDED, *_WHOLE_NORMS) if whole_norms else _DIVIDED
        self._table = [(re.compile(f"(?:{name})$"), dim, kinds) for name, dim, kinds in rows]

    def fill(self, target: torch.Tensor, name: str) -> None:
        part = self.part(name, target.shape)
        if part is not None:
            self._fill_part(target, name, part)
            return
        self._source.fill(target, name)
        if self._rank > 0 and _OF_SUMS.search(name):
            target.zero_()

    def part(self, name: str, shape: Sequence[int]) -> OwnedPart | None:
        """Which part of a tensor is this rank's, whose part has a shape; None: all of it."""
        for pattern, dim, kinds in self._table:
            if pattern.search(name):
                return _part(dim, [self._shares[kind] for kind in kinds], shape[dim])
        return None

    def shape(self, name: str) -> tuple[int, ...] | None:
        return self._source.shape(name)

    def finish(self) -> None:
        self._source.finish()

    def _fill_part(self, target: torch.Tensor, name: str, part: OwnedPart) -> None:
        shape = list(target.shape)
        shape[part.dim] = part.whole
        lengths = [own.stop - own.start for own in part.own]
        targets = torch.split(target, lengths, part.dim)
        if isinstance(self._source, Checkpoint):
            for each, own in zip(targets, part.slices(), strict=True):
                self._source.fill_part(each, name, tuple(shape), own)
            return
        whole = target.new_empty(shape)  # random numbers are those of one rank
        self._source.fill(whole, name)
        for each, own in zip(targets, part.slices(), strict=True):
            each.copy_(whole[own])


def _part(dim: int, shares: Sequence[RankShare], length: int) -> OwnedPart:
    """Where a part that has `length` of a dimension is in the whole.

    A share's unit may be several elements (the lanes of a head), or several units one (groups).
    """
    units = sum(share.length for share in shares)
    own, start = [], 0
    for share in shares:
        first = start + share.first
        own.append(slice(first * length // units, (first + share.length) * length // units))
        start += share.whole
    return OwnedPart(dim, start * length // units, tuple(own))
