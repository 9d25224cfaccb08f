"""Repetition, presence and frequency penalties: the counts and their effect on the logits.

Counts are one int32 word a token: (occurrences in the output) << 1 | (occurs in the prompt). They
are built from the engine's token history when a row is admitted (`sampling.rows` asks for them
where its parameters need them) and kept up to date on the device by the
sampler, on CUDA by `sampling.kernels.penalties`.

The effect, in float32 with one rounding an operation, on every device (Keskar et al. 2019,
section 4.1, for the first; OpenAI's definitions for the others):

    seen in prompt or output:  l = l / repetition if l > 0 else l * repetition
    occurs c times in output:  l = (l - frequency * c) - (presence if c > 0 else 0)
"""

from __future__ import annotations

import torch
from torch import Tensor

PROMPT_BIT, OUTPUT_UNIT = 1, 2


class PenaltyCounts:
    """Owns the counts of all rows: int32 [max_rows, vocab_size]."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self.words = torch.zeros(max_rows, vocab_size, dtype=torch.int32, device=device)
        self._staged: dict[int, tuple[int, int]] = {}  # row -> prompt_len, num_tokens

    def stage(self, row: int, *, prompt_len: int, num_tokens: int) -> None:
        """Count a row's history anew on the next flush."""
        self._staged[row] = (prompt_len, num_tokens)

    def unstage(self, row: int) -> None:
        """Forget a staged row that has gone."""
        self._staged.pop(row, None)

    def flush(self, history: Tensor) -> None:
        """Count the staged rows' tokens in `history`, int32 [max_rows, max_len]."""
        for row, (prompt_len, num_tokens) in self._staged.items():
            words = self.words[row].zero_()
            output = history[row, prompt_len:num_tokens].long()
            words.index_add_(0, output, torch.full_like(output, OUTPUT_UNIT, dtype=torch.int32))
            prompt = history[row, :prompt_len].long()
            words[prompt] = words[prompt] | PROMPT_BIT
        self._staged.clear()

    def add(self, rows: Tensor, token_ids: Tensor, mask: Tensor) -> None:
        """Count one output token a row where `mask` holds.

        Args:
            rows: integer [n], which rows; one may occur more than once.
            token_ids: integer [n].
            mask: bool [n].
        """
        units = mask.to(torch.int32) * OUTPUT_UNIT
        self.words.index_put_((rows.long(), token_ids.long()), units, accumulate=True)


def count_drafts(words: Tensor, history: Tensor, positions: Tensor, depths: Tensor) -> None:
    """Add the drafts right before a position to its row's counts.

    Args:
        words: int32 [n, vocab_size], packed counts, changed in place.
        history: int32 [n, max_len], the tokens of each row.
        positions: int64 [n], of the tokens to draw.
        depths: int32 [n], how many drafts are accepted before each position; ids outside the
            vocabulary are none.
    """
    before = torch.arange(1, int(depths.max()) + 1)
    drafts = history.long().gather(1, (positions[:, None] - before).clamp(min=0))
    counted = (before <= depths[:, None]) & (drafts >= 0) & (drafts < words.shape[1])
    units = counted.to(torch.int32) * OUTPUT_UNIT
    words.scatter_add_(1, drafts.clamp(0, words.shape[1] - 1), units)


def penalize(
    logits: Tensor, words: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor
) -> Tensor:
    """Return the penalised logits, float32 [n, vocab_size].

    Args:
        logits: float32 [n, vocab_size].
        words: int32 [n, vocab_size], packed counts.
        repetition, presence, frequency: float32 [n].
    """
    repetition, presence, frequency = (x[:, None] for x in (repetition, presence, frequency))
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    penalized = torch.where(words > 0, repeated, logits)
    count = words >> 1
    penalized = penalized - frequency * count
    return penalized - torch.where(count > 0, presence, 0.0)
