"""Finds the layer at which a position's bits begin to differ between two ways to serve it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

import torch

from engine.contracts.model import CausalLM, Hidden, ModelInputs

Chain = tuple[int, ...]
"""A token's numbers: of each layer's output, then of the final norm's."""


class LayerDigests:
    """A `CausalLM` that keeps a number of each layer's output, for every token it computes.

    The number is a sum of the output's bits, each word times an odd number of its own, modulo
    2^64: outputs that differ have the same number once in 2^64 or so.

    Attributes:
        chains: by position, those of the tokens computed there, in order.
    """

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self.chains: dict[int, list[Chain]] = defaultdict(list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, inputs: ModelInputs, feature_layers: Sequence[int] = ()) -> Hidden:
        """Compute the hidden states and the features that are asked for."""
        layers = range(self._model.num_feature_layers)
        final, features = self._model.forward(inputs, layers)
        assert features is not None
        outputs = features.view(len(final), len(layers), -1)
        numbers = torch.cat([_numbers(outputs), _numbers(final[:, None])], dim=1).tolist()
        for position, chain in zip(inputs.positions.tolist(), numbers, strict=True):
            self.chains[position].append(tuple(chain))
        asked = outputs[:, list(feature_layers)].flatten(1) if feature_layers else None
        return Hidden(final, asked)


def _numbers(outputs: torch.Tensor) -> torch.Tensor:
    """The numbers of outputs [T, L, hidden]: int64 [T, L]."""
    words = outputs.contiguous().view(torch.int16).long()
    odd = 2 * torch.arange(words.shape[-1], device=words.device) + 0x9E3779B97F4A7C1
    return (words * odd).sum(-1)


def first_difference(wanted: Iterable[Chain], got: Sequence[Chain]) -> str | None:
    """In words, where chains part from the wanted ones that they follow longest; None: nowhere."""
    pairs = [(ours, theirs) for ours in wanted for theirs in got]
    if not pairs:
        return None
    lengths = [
        (len(list(takewhile(bool, map(int.__eq__, ours, theirs)))), len(ours) - 1)
        for ours, theirs in pairs
    ]
    layer, num_layers = max(lengths)
    if layer > num_layers:
        return None
    return "the final norm" if layer == num_layers else f"layer {layer}"
