"""Drafts from the row's own text: the tokens that followed an earlier copy of its last tokens.

The drafts of a row go on from the longest n-gram that ends its history and occurs in it earlier,
`min_n` to `max_n` tokens long; of equally long ones from the latest. Where the text that followed
is shorter than k it is repeated, as it would be if the row went on like that.
"""

from __future__ import annotations

import torch

from engine.contracts.drafter import VerifiedStep
from engine.kernels.ngram import ngram_drafts_triton
from engine.speculation.text_drafter import TextDrafter


class NgramDrafter(TextDrafter):
    """The `Drafter` that reads a row's own text."""

    def __init__(self, num_tokens: int, lengths: tuple[int, int], history: torch.Tensor) -> None:
        super().__init__(num_tokens, history)
        self._lengths = lengths

    def propose(self, step: VerifiedStep) -> torch.Tensor:
        batch = step.sampling  # positions of the first draft: as many tokens are known
        drafts = ngram_drafts(
            self._history, batch.rows, batch.positions, self.num_tokens, *self._lengths
        )
        return drafts[:, : step.num_drafts]


def ngram_drafts(
    history: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    num_tokens: int,
    min_n: int,
    max_n: int,
) -> torch.Tensor:
    """Find the drafts int32 [L, num_tokens] of rows, -1 in rows without a match.

    Args:
        history: int32 [max_rows + 1, max_len].
        rows: int32 [L]. lengths: int64 [L], tokens of the history that are known.
        min_n, max_n: tokens that must match and that are compared at most.
    """
    if history.is_cuda:
        return ngram_drafts_triton(history, rows, lengths, num_tokens, min_n, max_n)
    return ngram_drafts_torch(history, rows, lengths, num_tokens, min_n, max_n)


def ngram_drafts_torch(
    history: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    num_tokens: int,
    min_n: int,
    max_n: int,
) -> torch.Tensor:
    """Compute `ngram_drafts` on a CPU, where the host may look at lengths."""
    drafts = torch.full((len(rows), num_tokens), -1, dtype=torch.int32)
    ahead = torch.arange(num_tokens)
    for i, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        tokens = history[row, :length]
        following = _longest_match(tokens, min_n, max_n)
        if following is not None:
            drafts[i] = tokens[following + ahead % (length - following)]
    return drafts


def _longest_match(tokens: torch.Tensor, min_n: int, max_n: int) -> int | None:
    """The index at which the text after the longest match begins; None without a match."""
    ends = torch.arange(len(tokens) - 1)  # where an earlier n-gram may end
    matching = torch.zeros(0, dtype=torch.int64)
    for n in range(1, max_n + 1):
        ends = ends[ends >= n - 1]
        ends = ends[tokens[ends - (n - 1)] == tokens[-n]] if len(ends) else ends
        if not len(ends):
            break
        if n >= min_n:
            matching = ends
    return int(matching[-1]) + 1 if len(matching) else None
