from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import masking_utils

from engine.errors import ModelError
from engine.models.fallback.masks import describe_mask, window_of


def test_causal() -> None:
    assert window_of(describe_mask(masking_utils.causal_mask_function), 1 << 17) is None


@pytest.mark.parametrize("window", [1, 2, 11, 4096])
def test_sliding_window(window: int) -> None:
    mask = describe_mask(masking_utils.sliding_window_causal_mask_function(window))
    assert window_of(mask, 1 << 17) == window
    assert window_of(mask, window) is None  # wider than what is served


@pytest.mark.parametrize("size", [128, 8192])
def test_chunks_are_served_up_to_one(size: int) -> None:
    none = torch.zeros(1, dtype=torch.int64)
    mask = describe_mask(masking_utils.chunked_causal_mask_function(size, none))
    assert window_of(mask, size) is None
    with pytest.raises(ModelError, match=f"chunked attention .* --max-model-len to {size}"):
        window_of(mask, size + 1)


def scalars_only(batch: int, head: int, query: int, key: int) -> bool:
    return bool(key <= query)


@pytest.mark.parametrize(
    "rule",
    [
        masking_utils.bidirectional_mask_function,
        masking_utils.sliding_window_bidirectional_mask_function(5),
        lambda batch, head, query, key: (key <= query) & (key % 2 == 0),
        lambda batch, head, query, key: (key <= query) & (key >= query // 2),
        scalars_only,
    ],
)
def test_anything_else_is_refused(rule: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(ModelError, match="not causal over all or a sliding window"):
        window_of(describe_mask(rule), 1 << 17)


@pytest.mark.parametrize("mask", [None, torch.zeros(1, 1, 4, 4)])
def test_masks_made_otherwise_are_refused(mask: torch.Tensor | None) -> None:
    with pytest.raises(ModelError, match="masks of the model's own"):
        window_of(mask, 100)
