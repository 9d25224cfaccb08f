"""A draw of rows whose parameters and grammars differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sampling.params import SamplingParams
from sampling.rows import SamplingRows
from sampling.sampler import Sampler, SamplingBatch
from tests.sampling.environment import config_on
from tests.sampling.steps import put_masks

NUM_ROWS, PROMPT_LEN = 12, 10
NOTHING_LEFT = 10  # the row whose grammar, if it has one, allows nothing


def allowed_ids(wishes: list[dict[str, Any]], vocab_size: int) -> list[list[int] | None]:
    """What the grammars of the rows allow: a third of the ids, nothing in row `NOTHING_LEFT`.

    Row 6 has no mask, whatever its parameters.
    """
    generator = torch.Generator().manual_seed(3)
    allowed: list[list[int] | None] = []
    for row in range(NUM_ROWS):
        ids = torch.randint(0, vocab_size, (vocab_size // 3,), generator=generator).tolist()
        masked = "constrained" in wishes[row % len(wishes)] and row != 6
        allowed.append([] if masked and row == NOTHING_LEFT else ids if masked else None)
    return allowed


def draw(logits: Tensor, wishes: list[dict[str, Any]], vocab_size: int) -> tuple[Any, Tensor]:
    """Draw once for every row; return the output and the counts it leaves."""
    device = logits.device
    generator = torch.Generator().manual_seed(vocab_size)
    history = torch.randint(0, vocab_size, (NUM_ROWS, 64), generator=generator, dtype=torch.int32)
    rows = SamplingRows(
        NUM_ROWS, vocab_size, device, history=history.to(device), max_masks=NUM_ROWS
    )
    for row in range(NUM_ROWS):
        seed = row * 7919 - 3
        # A seed of its own keeps a row on the native path, whatever FlashInfer does.
        params = SamplingParams(seed=seed, **wishes[row % len(wishes)])
        rows.add(row, params, seed=seed, choice=row % 3, prompt_len=PROMPT_LEN, num_tokens=20)
    rows.flush()
    rows_np = np.arange(NUM_ROWS, dtype=np.int32)
    batch = SamplingBatch(
        torch.from_numpy(rows_np.copy()).to(device),
        torch.full((NUM_ROWS,), 20, device=device),
        rows_np,
        rows.needs(rows_np),
        mask_slots=put_masks(rows, allowed_ids(wishes, vocab_size)),
    )
    return Sampler(config_on(device), rows)(logits, batch), rows.counts.words
