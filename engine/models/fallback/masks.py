"""Learns which keys a transformers layer sees, from the function that would make its mask.

While a model is recorded, our mask function replaces that of transformers. It gets the
rule itself, a function of (batch, head, query index, key index), asks it about a few queries, and
hands back a one-element tensor naming what it found. So windows come from what transformers does,
not from how a config calls them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.errors import ModelError

PROBED_QUERIES = (0, 1, 5, 130, 1000, 4095, 4096, 4097, 8192, 32769, 131071)
BEYOND = 4
"""Number of keys after the query that are asked about too."""

FULL = 0
UNKNOWN = -1
"""Codes of a described mask; a window's code is its size, that of chunks minus their size."""


def describe_mask(mask_function: Callable[..., torch.Tensor], **_: Any) -> torch.Tensor:
    """Describe a mask by its code, int64 [1, 1, 1, 1]; a mask interface of transformers."""
    return torch.tensor(_code_of(mask_function)).view(1, 1, 1, 1)


def window_of(mask: Any, num_positions: int) -> int | None:
    """The sliding window of a described mask over `num_positions` positions; None for all keys.

    Raises:
        ModelError: the mask is neither causal nor a causal sliding window.
    """
    if not isinstance(mask, torch.Tensor) or mask.shape != (1, 1, 1, 1):
        raise ModelError("attention masks of the model's own making")
    code = int(mask.item())
    if code == UNKNOWN:
        raise ModelError("attention that is not causal over all or a sliding window of keys")
    if code < 0 and -code < num_positions:
        raise ModelError(
            f"chunked attention beyond one chunk: set --max-model-len to {-code} or less"
        )
    return code if 0 < code < num_positions else None


def _code_of(mask_function: Callable[..., torch.Tensor]) -> int:
    lowest = {}  # query -> first key seen
    for query in PROBED_QUERIES:
        keys = torch.arange(query + 1 + BEYOND)
        index = torch.zeros_like(keys)
        try:
            seen = mask_function(index, index, torch.full_like(keys, query), keys).expand(len(keys))
        except (IndexError, TypeError, RuntimeError, AttributeError):
            return UNKNOWN
        first = int(seen.int().argmax())
        if not torch.equal(seen, (keys >= first) & (keys <= query)):
            return UNKNOWN
        lowest[query] = first
    return _rule(lowest)


def _rule(lowest: dict[int, int]) -> int:
    """The code of the rule that explains the first key each query sees."""
    if not any(lowest.values()):
        return FULL
    query = max(lowest)
    window = query - lowest[query] + 1
    if all(first == max(0, q - window + 1) for q, first in lowest.items()):
        return window
    # A chunk starts at the query's last multiple of its size; the smallest start seen is one.
    size = min(first for first in lowest.values() if first)
    if all(first == q // size * size for q, first in lowest.items()):
        return -size
    return UNKNOWN
