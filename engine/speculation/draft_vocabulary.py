"""The ids that a head drafts whose LM head has fewer than the target's."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.errors import ModelError
from engine.models.formats.reader import WeightReader
from engine.models.weights.stored import WeightSource

MASK = "t2d"
"""The mask of a reduced vocabulary's tokens, which its ids (d2t) make redundant."""


def draft_columns(
    folder: Path,
    source: WeightSource,
    reader: WeightReader,
    num_drafted: int,
    vocab_size: int,
) -> torch.Tensor | None:
    """The column of each token's logit, from d2t, which maps draft ids to target id - draft id.

    Returns:
        int32 [vocab_size], -1 for tokens that are never drafted; None where the draft ids are the
        target's.

    Raises:
        ModelError: two draft ids are one token, or one is outside the vocabulary.
    """
    token_ids = torch.arange(num_drafted, device=reader.device)
    if source.shape("d2t") is not None:
        token_ids = token_ids + reader.fixed("d2t", num_drafted)
    is_outside = int(token_ids.min()) < 0 or int(token_ids.max()) >= vocab_size
    if is_outside or len(torch.unique(token_ids)) < num_drafted:
        raise ModelError(
            f"{folder}: d2t must map the {num_drafted} draft tokens to different ones of the "
            f"target's {vocab_size}"
        )
    if torch.equal(token_ids, torch.arange(vocab_size, device=reader.device)):
        return None
    columns = torch.full((vocab_size,), -1, dtype=torch.int32, device=reader.device)
    columns[token_ids] = torch.arange(num_drafted, dtype=torch.int32, device=reader.device)
    return columns
