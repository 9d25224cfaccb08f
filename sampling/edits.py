"""Each row's masks and biases of single tokens: allowed ids, logit bias, bad words, min_tokens.

A row's edits are few and known at admission, except whether a ban is in force, which depends on
how many tokens are out and on the last ones. They are kept sorted by token id with the start of
each tile's share, so that a tile looks at its own edits only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sampling.device.mirror import MirroredRows, Writes
from sampling.noise import TILE
from sampling.params import MAX_BAD_WORD_TOKENS, MAX_EDITS, SamplingParams

ALWAYS = 2**31 - 1  # the `until` of a ban that never ends

# Columns of `EditRows.table`.
TOKEN, UNTIL, WORD_START, WORD_LEN, NUM_COLUMNS = range(5)


@dataclass(frozen=True, slots=True)
class _Edit:
    """A ban or a bias of one token's logit."""

    token: int
    until: int = 0  # banned while fewer tokens are out
    bias: float = 0.0
    prefix: tuple[int, ...] = ()  # banned while the history ends with this


class EditRows:
    """Owns every row's edits and its bitmap of allowed ids."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        num_tiles = -(-vocab_size // TILE)
        self._table = MirroredRows((max_rows, MAX_EDITS, NUM_COLUMNS), np.int32, device)
        self._bias = MirroredRows((max_rows, MAX_EDITS), np.float32, device)
        self._tile_start = MirroredRows((max_rows, num_tiles + 1), np.int32, device)
        self._words = MirroredRows((max_rows, MAX_BAD_WORD_TOKENS), np.int32, device)
        # A bit a token, 32 tokens a word, low bit first.
        self._allowed = MirroredRows((max_rows, -(-vocab_size // 32)), np.int32, device)

    @property
    def table(self) -> Tensor:
        """The edits, int32 [max_rows, MAX_EDITS, NUM_COLUMNS], each row sorted by token."""
        return self._table.tensor

    @property
    def bias(self) -> Tensor:
        """The biases of the edits, float32 [max_rows, MAX_EDITS]."""
        return self._bias.tensor

    @property
    def tile_start(self) -> Tensor:
        """Where each tile's edits start and the last ones end, int32 [max_rows, num_tiles + 1]."""
        return self._tile_start.tensor

    @property
    def words(self) -> Tensor:
        """The beginnings of bad words, end to end, int32 [max_rows, MAX_BAD_WORD_TOKENS]."""
        return self._words.tensor

    @property
    def allowed(self) -> Tensor:
        """Bitmaps of the allowed ids, int32 [max_rows, ceil(vocab_size / 32)].

        A row without an allowed set has an undefined one.
        """
        return self._allowed.tensor

    def add(self, row: int, params: SamplingParams) -> int:
        """Stage a row's edits and return their number."""
        if params.allowed_token_ids is not None:
            allowed = np.zeros(32 * self._allowed.np.shape[1], dtype=np.uint8)
            allowed[list(params.allowed_token_ids)] = 1
            self._allowed.np[row] = np.packbits(allowed, bitorder="little").view("<i4")
            self._allowed.touch(row)
        edits = _edits(params)
        if edits:
            self._stage(row, edits)
        return len(edits)

    def take(self) -> list[Writes]:
        """What was staged since the last call, to be published."""
        mirrors = (self._table, self._bias, self._tile_start, self._words, self._allowed)
        return [writes for mirror in mirrors for writes in mirror.take()]

    def _stage(self, row: int, edits: list[_Edit]) -> None:
        """Write a row's edits, which are sorted by token, into the host's tables."""
        word_start = 0
        for i, edit in enumerate(edits):
            word_end = word_start + len(edit.prefix)
            self._table.np[row, i] = (edit.token, edit.until, word_start, len(edit.prefix))
            self._bias.np[row, i] = edit.bias
            self._words.np[row, word_start:word_end] = edit.prefix
            word_start = word_end
        tiles = np.arange(self._tile_start.np.shape[1]) * TILE
        self._tile_start.np[row] = np.searchsorted([edit.token for edit in edits], tiles)
        for mirror in (self._table, self._bias, self._tile_start, self._words):
            mirror.touch(row)


def _edits(params: SamplingParams) -> list[_Edit]:
    """List a request's edits, sorted by token id."""
    edits = [_Edit(token, bias=bias) for token, bias in params.logit_bias.items() if bias]
    if params.min_tokens > 0:
        edits += [_Edit(token, until=params.min_tokens) for token in params.stop_token_ids]
    for word in params.bad_words:
        prefix, last = word[:-1], word[-1]
        edits.append(_Edit(last, prefix=prefix) if prefix else _Edit(last, until=ALWAYS))
    return sorted(edits, key=lambda edit: edit.token)
