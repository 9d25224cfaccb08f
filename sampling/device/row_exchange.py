# mypy: allow-untyped-defs, allow-incomplete-defs
"""Gathers rows of different lengths from all ranks: of each row only the words that it has.

The mailboxes, letters and numbers are those of `sampling.device.exchange`. A program handles one
row after another, a letter at a time: the number of words, then the words. A negative count leaves
a row out; all ranks know it alike, on the device, and such a row costs no more than reading it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sampling.device.exchange import (
    LETTER_BYTES,
    NUM_PROGRAMS,
    Mailboxes,
    notify,
    place_of,
    wait_for_others,
)
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.ranks import RaggedRows
from sampling.device.triton_support import constexpr, jit, tl

HEAD = 16
"""Words in front of a letter's own; the first says how many there are to send in all."""
LETTER_WORDS = LETTER_BYTES // 4 - HEAD
BLOCK = 2048
"""Words that a program handles at once."""

_HEAD, _LETTER_WORDS, _BLOCK = constexpr(HEAD), constexpr(LETTER_WORDS), constexpr(BLOCK)


@jit(do_not_specialize=["num_rows"])
def _rows_kernel(
    words,
    counts,
    out,
    all_counts,
    mailboxes,
    num_rows,
    stride,
    width,
    rank: tl.constexpr,
    num_ranks: tl.constexpr,
    sends: tl.constexpr,
    receives: tl.constexpr,
    overlap: tl.constexpr,
):
    """Gather rows of `width` words, `counts` of them, as [ranks, n, width] and [ranks, n]."""
    begin_next(overlap)
    wait_for_last(overlap)
    number = tl.load(mailboxes.sent + tl.program_id(0))
    for i in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        count = tl.load(counts + i)
        if count < 0:
            if receives:
                for sender in tl.static_range(num_ranks):
                    tl.store(all_counts + sender * num_rows + i, count)
        else:
            own = words + tl.cast(i, tl.int64) * stride
            for start in range(0, width, _LETTER_WORDS):
                number += 1
                if sends:
                    for other in tl.static_range(num_ranks):
                        if other != rank:
                            place = place_of(number, rank, 1, 0, num_ranks, 4)
                            letter = mailboxes.letters[other] + place
                            tl.store(letter, count)
                            _copy(own + start, letter + _HEAD, count - start)
                    notify(mailboxes, number, rank, num_ranks)
                if receives:
                    wait_for_others(mailboxes, number, rank, num_ranks)
                    for sender in tl.static_range(num_ranks):
                        row = sender * num_rows + i
                        to = out + tl.cast(row, tl.int64) * width + start
                        if sender == rank:
                            tl.store(all_counts + row, count)
                            _copy(own + start, to, count - start)
                        else:
                            place = place_of(number, sender, 1, 0, num_ranks, 4)
                            letter = mailboxes.letters[rank] + place
                            received = tl.load(letter, cache_modifier=".cg")
                            tl.store(all_counts + row, received)
                            _copy(letter + _HEAD, to, received - start)
    if receives:
        tl.store(mailboxes.sent + tl.program_id(0), number)


@jit
def _copy(source, to, count):
    """Copy a letter's share of `count` words."""
    count = tl.minimum(count, _LETTER_WORDS)
    lanes = tl.arange(0, _BLOCK)
    for start in range(0, count, _BLOCK):
        at = start + lanes
        words = tl.load(source + at, mask=at < count, cache_modifier=".cg")
        tl.store(to + at, words, mask=at < count)


def gather_rows(
    words: Tensor,
    counts: Tensor,
    width: int,
    mailboxes: Mailboxes,
    rank: int,
) -> RaggedRows:
    """Every rank's rows; arguments as for `sampling.vocab_shard.VocabShard.gather_rows`."""
    num_rows, num_ranks = len(counts), len(mailboxes.letters)
    gathered = RaggedRows(
        torch.empty((num_ranks, num_rows, width), dtype=torch.int32, device=words.device),
        torch.empty((num_ranks, num_rows), dtype=torch.int32, device=words.device),
    )
    launch(words, counts, gathered, mailboxes, rank)
    return gathered


def launch(
    words: Tensor,
    counts: Tensor,
    gathered: RaggedRows,
    mailboxes: Mailboxes,
    rank: int,
    *,
    sends: bool = True,
    receives: bool = True,
) -> None:
    """Launch the kernel; tests of one thread send for all ranks, then receive for all."""
    num_ranks, num_rows, width = gathered.words.shape
    if not num_rows:
        return
    _rows_kernel[(min(num_rows, NUM_PROGRAMS),)](
        words,
        counts,
        gathered.words,
        gathered.counts,
        mailboxes,
        num_rows,
        words.stride(0),
        width,
        rank=rank,
        num_ranks=num_ranks,
        sends=sends,
        receives=receives,
        num_warps=8,
        **overlap_of(words),
    )
