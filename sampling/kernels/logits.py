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
from sampling.device.triton_support import constexpr, jit, tl
from sampling.kernels.row_params import (
    NUM_FLOATS,
    NUM_INTS,
    PROMPT_LEN,
    load_flags,
    sampling_row,
)
from sampling.params import MAX_BAD_WORD_TOKENS, MAX_EDITS
from sampling.rows import GRAMMAR, SamplingRows
from sampling.vocab_shard import VocabShard

TILE = constexpr(noise.TILE)
PENALIZED = constexpr(rows.PENALIZED)

_EDITED, _MASKED = constexpr(rows.EDITED), constexpr(rows.MASKED)
_GRAMMAR = constexpr(GRAMMAR)
_REPETITION, _PRESENCE = constexpr(rows.REPETITION), constexpr(rows.PRESENCE)
_FREQUENCY = constexpr(rows.FREQUENCY)
_EDIT_SLOTS, _WORD_SLOTS = constexpr(MAX_EDITS), constexpr(MAX_BAD_WORD_TOKENS)
_EDIT_COLUMNS = constexpr(edits.NUM_COLUMNS)
_TOKEN, _UNTIL = constexpr(edits.TOKEN), constexpr(edits.UNTIL)
_WORD_START, _WORD_LEN = constexpr(edits.WORD_START), constexpr(edits.WORD_LEN)
# What `_edited` applies of a row's edits.
_EVERYTHING, _LASTING_BANS, _BIASES = constexpr(0), constexpr(1), constexpr(2)
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
    grammar_masks: Tensor  # int32 [max_masks, ceil(vocab_size / 32)]
    mask_slots: Tensor | None  # int32 [n]; None, where no row has a grammar, costs nothing
    first_tile: int | None = None  # of the ids that a rank holds; None, for all, costs nothing
    end_id: int | None = None  # the first id after them
    # Logits of all ranks one after another: from one rank's to the next one's, and of how many.
    part_stride: int | None = None
    num_parts: int | None = None

    @classmethod
    def of(
        cls,
        logits: Tensor,
        batch: SamplingBatch,
        rows: SamplingRows,
        shard: VocabShard | None = None,
    ) -> Source:
        """The source of `logits` [n, width >= vocab_size] for flushed `rows`.

        With a `shard` they are those of its ids, [n, width]; all else goes by ids of the whole
        vocabulary.

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
            rows.grammar_masks,
            batch.mask_slots if batch.needs.flags & GRAMMAR else None,
            None if shard is None else shard.first_tile,
            None if shard is None else shard.first + shard.width,
        )

    @property
    def num_tiles(self) -> int:
        """How many tiles are held."""
        if self.first_tile is None or self.end_id is None:
            return -(-self.vocab_size // noise.TILE)
        return -(-self.end_id // noise.TILE) - self.first_tile


@jit
def load_raw(source, i, token_ids, mask):
    """Load logits of logit row i (int64) as float32; -inf outside the mask or what is held."""
    pointers = source.logits + i * source.logits_stride + token_ids
    if source.part_stride is not None:
        mask = mask & (token_ids < source.vocab_size)
        num_tiles = (source.vocab_size + TILE - 1) // TILE
        part = ((token_ids // TILE + 1) * source.num_parts - 1) // num_tiles
        first = part * num_tiles // source.num_parts * TILE
        pointers += part.to(tl.int64) * source.part_stride - first
    elif source.first_tile is None:
        mask = mask & (token_ids < source.vocab_size)
    else:
        first = source.first_tile * TILE
        mask = mask & (token_ids >= first) & (token_ids < source.end_id)
        pointers -= first
    return tl.load(pointers, mask=mask, other=float("-inf")).to(tl.float32)


@jit
def global_tile(source, tile):
    """The number in the vocabulary of a tile counted from the first that is held."""
    if source.first_tile is not None:
        tile += source.first_tile
    return tile


@jit
def is_held(source, tile):
    """Whether a tile, by its number in the vocabulary, is among those that are held."""
    held = tile >= 0
    if source.first_tile is not None:
        held = (tile >= source.first_tile) & (tile * TILE < source.end_id)
    return held


@jit
def processed(raw, token_ids, source, i, first_tile, last_tile):
    """Apply masks, bias and penalties to raw logits of the tiles first_tile .. last_tile - 1.

    Ids outside the vocabulary, which fill a block up, may be anything.
    """
    row = sampling_row(source, i)
    flags = load_flags(source, row)
    return processed_as(flags, raw, token_ids, source, i, row, first_tile, last_tile)


@jit
def processed_as(
    flags, raw, token_ids, source, i, row, first_tile, last_tile, tiles: tl.constexpr = 0
):
    """`processed` for a row whose flags are loaded already.

    Args:
        tiles: the ids are those of so many tiles, in order, whose mask is read a word at a time; 0
            means any ids.
    """
    values, position = raw, tl.load(source.positions + i)
    if flags & _EDITED:
        values = _edited(
            values, token_ids, source, row, position, first_tile, last_tile, _EVERYTHING
        )
    if flags & _MASKED:
        values = _allowed(values, token_ids, source, source.allowed, row)
    if source.mask_slots is not None:
        slot = _mask_slot(flags, source, i)
        if slot >= 0:
            if tiles:
                values = _allowed_tiles(
                    values, source, source.grammar_masks, slot, first_tile, tiles
                )
            else:
                values = _allowed(values, token_ids, source, source.grammar_masks, slot)
    if flags & PENALIZED:
        values = _penalized(values, token_ids, source, i, row, position)
    return values


@jit
def unmasked_as(flags, raw, token_ids, source, i, row, first_tile, last_tile):
    """`processed_as` without masks: bias and penalties alone."""
    values, position = raw, tl.load(source.positions + i)
    if flags & _EDITED:
        values = _edited(values, token_ids, source, row, position, first_tile, last_tile, _BIASES)
    if flags & PENALIZED:
        values = _penalized(values, token_ids, source, i, row, position)
    return values


@jit
def masked_draft(raw, token_ids, source, row, position, first_tile, last_tile):
    """Apply the masks a draft must obey (`torch_edits.mask_drafts`); arguments as `processed`."""
    flags = load_flags(source, row)
    values = raw
    if flags & _EDITED:
        values = _edited(
            values, token_ids, source, row, position, first_tile, last_tile, _LASTING_BANS
        )
    if flags & _MASKED:
        values = _allowed(values, token_ids, source, source.allowed, row)
    return values


@jit
def _allowed(values, token_ids, source, bitmaps, row):
    """Mask all but the ids that row `row` of some bitmaps allows, a bit a token."""
    inside = (token_ids >= 0) & (token_ids < source.vocab_size)
    words = bitmaps + row.to(tl.int64) * ((source.vocab_size + 31) // 32) + token_ids // 32
    bits = tl.load(words, mask=inside, other=0) >> (token_ids % 32)
    return tl.where((bits & 1) != 0, values, float("-inf"))


@jit
def _allowed_tiles(values, source, bitmaps, row, first_tile, tiles: tl.constexpr):
    """`_allowed` for the ids of whole tiles, [tiles, TILE], from `first_tile` on."""
    num_words = (source.vocab_size + 31) // 32
    word_ids = (first_tile + tl.arange(0, tiles))[:, None] * (TILE // 32)
    word_ids += tl.arange(0, TILE // 32)[None, :]
    at = bitmaps + row.to(tl.int64) * num_words + word_ids
    words = tl.load(at, mask=word_ids < num_words, other=0)
    bits = (words[:, :, None] >> tl.arange(0, 32)[None, None, :]) & 1
    return tl.where(tl.reshape(bits, (tiles, TILE)) != 0, values, float("-inf"))


@jit
def _mask_slot(flags, source, i):
    """The slot of logit row i's mask; below 0 where it has none."""
    slot = tl.load(source.mask_slots + i)
    return tl.where((flags & _GRAMMAR) != 0, slot, -1)


@jit
def masked_tiles(flags, raw, source, i, first_tile, tiles: tl.constexpr):
    """`processed_as` for a batch of which no row has other edits than a grammar's mask.

    Raw logits that are NaN or inf leave a NaN where they are masked, so that they are not hidden.

    Args:
        raw: [tiles, TILE], logits of so many tiles from `first_tile` on.
    """
    slot = _mask_slot(flags, source, i)
    num_bytes = (source.vocab_size + 31) // 32 * 4
    byte_ids = (first_tile + tl.arange(0, tiles))[:, None] * (TILE // 8)
    byte_ids += tl.arange(0, TILE // 8)[None, :]
    at = source.grammar_masks.to(tl.pointer_type(tl.uint8)) + slot.to(tl.int64) * num_bytes
    inside = byte_ids < tl.where(slot >= 0, num_bytes, 0)
    allowed = tl.load(at + byte_ids, mask=inside, other=255).to(tl.int32)
    bits = (allowed[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
    # Adding -0 changes nothing, not even -0.
    return raw + tl.where(tl.reshape(bits, (tiles, TILE)) != 0, -0.0, float("-inf"))


@jit
def _edited(values, token_ids, source, row, position, first_tile, last_tile, what: tl.constexpr):
    """Apply a row's edits: all that are in force, the bans no history can lift, or the biases."""
    num_tiles = (source.vocab_size + TILE - 1) // TILE
    starts = source.edit_start + row * (num_tiles + 1)
    num_output = position - tl.load(source.ints + row * NUM_INTS + PROMPT_LEN)
    for e in range(tl.load(starts + first_tile), tl.load(starts + last_tile)):
        edit = source.edit_table + (row * _EDIT_SLOTS + e) * _EDIT_COLUMNS
        edited = values
        if what != _LASTING_BANS:
            edited = values + tl.load(source.edit_bias + row * _EDIT_SLOTS + e)
        if what != _BIASES:
            banned = tl.load(edit + _UNTIL) > num_output
            if what == _EVERYTHING:
                banned = banned | _ends_bad_word(source, edit, row, position)
            edited = tl.where(banned, float("-inf"), edited)
        values = tl.where(token_ids == tl.load(edit + _TOKEN), edited, values)
    return values


@jit
def _ends_bad_word(source, edit, row, position):
    """Whether an edit's token would end a bad word of several tokens, given the history."""
    length = tl.load(edit + _WORD_LEN)
    matches = tl.full((), 0, tl.int32)
    if (length > 0) & (position >= length):
        matches = tl.full((), 1, tl.int32)
        words = source.edit_words + row * _WORD_SLOTS + tl.load(edit + _WORD_START)
        history = source.history + row * source.history_stride + position - length
        for w in range(0, length):
            matches = matches & (tl.load(words + w) == tl.load(history + w)).to(tl.int32)
    return matches != 0


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
