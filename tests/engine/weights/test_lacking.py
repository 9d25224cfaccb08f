"""Rows of weights that were let go, as updates write them."""

from __future__ import annotations

import pytest
import torch

from engine.contracts.named_weights import NamedWeight, NamedWeights, TensorInfo, WeightUnit
from engine.weights.lacking import LackingWeights


def lacking(**shapes: tuple[int, ...]) -> LackingWeights:
    named = NamedWeights()
    for name, shape in shapes.items():
        unit = WeightUnit({name: TensorInfo(shape, torch.float32)}, lambda _: None, dict, list)
        named[name] = NamedWeight(name, unit, name)
    return LackingWeights(named)


@pytest.mark.parametrize(
    "parts",
    [
        [(0, 3), (3, 5), (5, 8)],
        [(5, 8), (0, 3), (3, 5)],
        [(3, 5), (0, 8)],
        [(2, 6), (0, 4), (5, 8)],
        [(1, 2), (3, 4), (5, 6), (2, 5), (6, 8), (0, 1)],
    ],
)
def test_a_weight_lacks_until_each_row_is_written(parts: list[tuple[int, int]]) -> None:
    """In any order, some twice; the last part is always needed."""
    weights = lacking(w=(8, 2))
    for start, end in parts[:-1]:
        weights.note_written({"w": [slice(start, end)]})
        weights.note_written({"w": [slice(start, end)]})
        assert len(weights) == 1
    weights.note_written({"w": [slice(*parts[-1])]})
    assert len(weights) == 0


def test_weights_are_written_whole_and_by_parts() -> None:
    weights = lacking(w=(8,), number=(), other=(3, 3))
    weights.note_written({"w": [None, slice(2, 4)], "of no model": [None]})
    assert len(weights) == 2
    weights.note_written({"number": [None], "other": [slice(0, 1), slice(1, 3)], "w": [None]})
    assert len(weights) == 0
