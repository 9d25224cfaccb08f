# mypy: allow-untyped-defs, allow-incomplete-defs
"""Device functions that read logits and apply masks, bias and penalties in registers.

Processed logits are never stored: every kernel that reads a logit applies the row's edits anew,
so the model's logits stay whole for raw logprobs and no second copy exists. Kernels that call
`processed` must be launched with `enable_fp_fusion=False`: a fused multiply-add would round
differently from the torch path.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from sampling import edits, noise, penalties, rows
from sampling.batch import SamplingBatch
from sampling.kernels.row_params import (
    NUM_FLOATS,
    NUM_INTS,
    PROMPT_LEN,
    load_flags,
    sampling_row,
)
from sampling.params import MAX_BAD_WORD_TOKENS, MAX_EDITS
from sampling.rows import SamplingRows
from sampling.triton_support import constexpr, jit, tl

TILE = constexpr(noise.TILE)
PENALIZED = constexpr(rows.PENALIZED)

_EDITED, _MASKED = constexpr(rows.EDITED), constexpr(rows.MASKED)
_REPETITION, _PRESENCE = constexpr(rows.REPETITION), constexpr(rows.PRESENCE)
_FREQUENCY = constexpr(rows.FREQUENCY)
_EDIT_SLOTS, _WORD_SLOTS = constexpr(MAX_EDITS), constexpr(MAX_BAD_WORD_TOKENS)
_EDIT_COLUMNS = constexpr(edits.NUM_COLUMNS)
_TOKEN, _UNTIL = constexpr(edits.TOKEN), constexpr(edits.UNTIL)
_WORD_START, _WORD_LEN = constexpr(edits.WORD_START), constexpr(edits.WORD_LEN)
COUNT_SHIFT = constexpr(penalties.OUTPUT_UNIT.bit_length() - 1)


class Source(NamedTuple):
    """All a kernel needs to read the processed logits of a batch; one kernel argument."""

    logits: Tensor  # [n, width], rows contiguous
    logits_stride: int
    vocab_size: int
    rows: Tensor  # int32 [n], logit row -> sampling row
    positions: Tensor  # int64 [n]
    ints: Tensor  # the tables of SamplingRows
    floats: Tensor
    edit_table: Tensor
    edit_bias: Tensor
    edit_start: Tensor
    edit_words: Tensor
    allowed: Tensor
    counts: Tensor
    history: Tensor  # int32 [max_rows, max_len]
    history_stride: int
    depths: Tensor | None  # int32 [n]; None costs nothing

    @classmethod
    def of(cls, logits: Tensor, batch: SamplingBatch, rows: SamplingRows) -> Source:
        """The source of `logits` [n, width >= vocab_size] for flushed `rows`.

        Raises:
            ValueError: the logits are not one contiguous row for each row of the batch.
        """
        if logits.stride(1) != 1 or len(logits) != len(batch.rows):
            raise ValueError("logits must be one contiguous row for each row of the batch")
        return cls(
            logits,
            logits.stride(0),
            rows.vocab_size,
            batch.rows,
            batch.positions,
            rows.ints,
            rows.floats,
            rows.edits.table,
            rows.edits.bias,
            rows.edits.tile_start,
            rows.edits.words,
            rows.edits.allowed,
            rows.counts.words,
            rows.history,
            rows.history.stride(0),
            batch.depths,
        )


@jit
def load_raw(source, i, token_ids, mask):
    """Load logits of logit row i (int64) as float32; -inf outside the mask or the vocabulary."""
    pointers = source.logits + i * source.logits_stride + token_ids
    mask = mask & (token_ids < source.vocab_size)
    return tl.load(pointers, mask=mask, other=float("-inf")).to(tl.float32)


@jit
def processed(raw, token_ids, source, i, first_tile, last_tile):
    """Apply masks, bias and penalties to raw logits of the tiles first_tile .. last_tile - 1.

    Ids outside the vocabulary, which fill a block up, may be anything.
    """
    row = sampling_row(source, i)
    flags = load_flags(source, row)
    return processed_as(flags, raw, token_ids, source, i, row, first_tile, last_tile)


@jit
def processed_as(flags, raw, token_ids, source, i, row, first_tile, last_tile):
    """`processed` for a row whose flags are loaded already."""
    values, position = raw, tl.load(source.positions + i)
    if flags & _EDITED:
        values = _edited(values, token_ids, source, row, position, first_tile, last_tile, False)
    if flags & _MASKED:
        values = _allowed(values, token_ids, source, row)
    if flags & PENALIZED:
        values = _penalized(values, token_ids, source, i, row, position)
    return values


@jit
def masked_draft(raw, token_ids, source, row, position, first_tile, last_tile):
    """Apply the masks a draft must obey (`torch_edits.mask_drafts`); arguments as `processed`."""
    flags = load_flags(source, row)
    values = raw
    if flags & _EDITED:
        values = _edited(values, token_ids, source, row, position, first_tile, last_tile, True)
    if flags & _MASKED:
        values = _allowed(values, token_ids, source, row)
    return values


@jit
def _allowed(values, token_ids, source, row):
    """Mask all but the row's allowed ids."""
    inside = (token_ids >= 0) & (token_ids < source.vocab_size)
    words = source.allowed + row * ((source.vocab_size + 31) // 32) + token_ids // 32
    bits = tl.load(words, mask=inside, other=0) >> (token_ids % 32)
    return tl.where((bits & 1) != 0, values, float("-inf"))


@jit
def _edited(values, token_ids, source, row, position, first_tile, last_tile, lasting: tl.constexpr):
    """Apply biases and the bans in force; if `lasting`, only bans that no history can lift."""
    num_tiles = (source.vocab_size + TILE - 1) // TILE
    starts = source.edit_start + row * (num_tiles + 1)
    num_output = position - tl.load(source.ints + row * NUM_INTS + PROMPT_LEN)
    for e in range(tl.load(starts + first_tile), tl.load(starts + last_tile)):
        edit = source.edit_table + (row * _EDIT_SLOTS + e) * _EDIT_COLUMNS
        banned = tl.load(edit + _UNTIL) > num_output
        biased = values
        if not lasting:
            length = tl.load(edit + _WORD_LEN)
            if (length > 0) & (position >= length):
                matches = 1
                words = source.edit_words + row * _WORD_SLOTS + tl.load(edit + _WORD_START)
                history = source.history + row * source.history_stride + position - length
                for w in range(0, length):
                    matches = matches & (tl.load(words + w) == tl.load(history + w)).to(tl.int32)
                banned = banned | (matches != 0)
            biased = values + tl.load(source.edit_bias + row * _EDIT_SLOTS + e)
        edited = tl.where(banned, float("-inf"), biased)
        values = tl.where(token_ids == tl.load(edit + _TOKEN), edited, values)
    return values


@jit
def _penalized(values, token_ids, source, i, row, position):
    """Penalize a block, as `penalties.count_drafts` and `penalties.penalize` do."""
    words = tl.load(
        source.counts + row * source.vocab_size + token_ids,
        mask=(token_ids >= 0) & (token_ids < source.vocab_size),
        other=0,
    )
    if source.depths is not None:
        depth = tl.load(source.depths + i)
        drafts = source.history + row * source.history_stride + position - depth
        for d in range(0, depth):
            words += (token_ids == tl.load(drafts + d)).to(tl.int32) << COUNT_SHIFT
    if tl.max(tl.ravel(words), 0) > 0:  # most tiles hold no token seen so far
        floats = source.floats + row * NUM_FLOATS
        repetition = tl.load(floats + _REPETITION).to(tl.float32)
        presence = tl.load(floats + _PRESENCE).to(tl.float32)
        frequency = tl.load(floats + _FREQUENCY).to(tl.float32)
        repeated = tl.where(values > 0, tl.div_rn(values, repetition), values * repetition)
        values = tl.where(words > 0, repeated, values)
        count = (words >> COUNT_SHIFT).to(tl.float32)
        values = values - frequency * count
        values = values - tl.where(count > 0, presence, 0.0)
    return values
