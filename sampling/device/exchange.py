# mypy: allow-untyped-defs, allow-incomplete-defs
"""Exchanges between GPUs in Triton: gathered values of all ranks, or their sum in rank order.

Every rank has a mailbox that all ranks can write to (memory mapped among them). A program owns a
chunk of what is exchanged: it writes its chunk into its place in every other rank's mailbox,
notifies each that it has done so, waits until all have, and reads the chunks in its own mailbox: to
copy them out side by side, or to add them up in float32 from rank 0 on. One write over the link and
one read of local memory, whatever the size, so a sum has the same bits at any size.

Few elements are packed, each with its letter's number in 8 bytes that arrive together, so that
nothing has to be announced and waited for apart: less time, and more bytes.

A letter is known by its number: how many letters the same program has sent so far, modulo 2^32. A
mailbox has two places for each, used in turn. Nobody writes to a place that is still being read:
who sends letter e has read the other's letter e - 1, which the other sent after it had read all of
letter e - 2.

All ranks must launch the same exchanges in the same order, each on one stream.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import constexpr, jit, tl, triton

STEP_BYTES = 16 << 10
"""Bytes that a program handles at once."""
MAX_STEPS = 4
"""Times a program does so in one letter."""
NUM_PROGRAMS = 128
"""Programs at most: all must run at once, on any GPU with so many multiprocessors."""
LETTER_BYTES = STEP_BYTES * MAX_STEPS
PACKED_BYTES = 8
"""Of an element and its letter's number."""
PACKED_BLOCK = 1024
"""Packed elements that a program handles."""
MAX_PACKED = 64 << 10
"""Elements that are packed at most: sixteen rows of 4,096."""
UNIT = 16
"""Elements that counts are multiples of where memory is read 16 bytes at a time."""

_UNIT, _NUM_PROGRAMS = constexpr(UNIT), constexpr(NUM_PROGRAMS)
_LETTER_BYTES = constexpr(LETTER_BYTES)


class Mailboxes(NamedTuple):
    """The mailboxes of all ranks as one rank reaches them; one kernel argument.

    Attributes:
        letters: int32, one of `letter_bytes` a rank.
        packed: int64 [2, ranks, MAX_PACKED] a rank, zeros at first.
        received: int32 [NUM_PROGRAMS, ranks] a rank, the number of the last letter from each.
        sent: int32 [NUM_PROGRAMS], the number of this rank's last letter.
    """

    letters: tuple[Tensor, ...]
    packed: tuple[Tensor, ...]
    received: tuple[Tensor, ...]
    sent: Tensor


def letter_bytes(num_ranks: int) -> int:
    """The size of a rank's letters that are not packed."""
    return 2 * num_ranks * NUM_PROGRAMS * LETTER_BYTES


@jit
def place_of(number, sender, steps, step, num_ranks: tl.constexpr, width: tl.constexpr):
    """Where in a mailbox a step of this program's letter lies, in elements of `width` bytes."""
    place = ((number & 1) * num_ranks + sender) * _NUM_PROGRAMS + tl.program_id(0)
    return place.to(tl.int64) * (_LETTER_BYTES // width) + step


@jit
def notify(mailboxes, number, rank: tl.constexpr, num_ranks: tl.constexpr):
    """Tell all others that the letter of this number is in their mailboxes."""
    tl.debug_barrier()  # all of the program's threads have written
    at = tl.program_id(0) * num_ranks + rank
    for other in tl.static_range(num_ranks):
        if other != rank:
            tl.atomic_xchg(mailboxes.received[other] + at, number, sem="release", scope="sys")


@jit
def wait_for_others(mailboxes, number, rank: tl.constexpr, num_ranks: tl.constexpr):
    """Wait until all others have sent the letter of this number, or of a later one."""
    for other in tl.static_range(num_ranks):
        if other != rank:
            at = mailboxes.received[rank] + tl.program_id(0) * num_ranks + other
            last = tl.atomic_add(at, 0, sem="acquire", scope="sys")
            while last - number < 0:  # modulo 2^32
                last = tl.atomic_add(at, 0, sem="acquire", scope="sys")
    tl.debug_barrier()


@jit(do_not_specialize=["units", "steps"])
def _exchange_kernel(
    values,
    out,
    mailboxes,
    units,
    steps,
    rank: tl.constexpr,
    num_ranks: tl.constexpr,
    unit: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    summed: tl.constexpr,
    sends: tl.constexpr,
    receives: tl.constexpr,
    overlap: tl.constexpr,
):
    """Exchange units * unit elements of `width` bytes, `block` at once, `steps` to a letter."""
    begin_next(overlap)
    wait_for_last(overlap)
    count = units * unit
    number = tl.load(mailboxes.sent + tl.program_id(0))
    lanes = tl.arange(0, block)
    first = tl.program_id(0) * steps * block
    while first < count:
        number += 1
        if sends:
            for step in range(0, steps * block, block):
                at = first + step + lanes
                own = tl.load(values + at, mask=at < count)
                for other in tl.static_range(num_ranks):
                    if other != rank:
                        place = place_of(number, rank, steps, step, num_ranks, width)
                        tl.store(mailboxes.letters[other] + place + lanes, own, mask=at < count)
            notify(mailboxes, number, rank, num_ranks)
        if receives:
            wait_for_others(mailboxes, number, rank, num_ranks)
            for step in range(0, steps * block, block):
                at = first + step + lanes
                total = tl.zeros((block,), tl.float32)
                for sender in tl.static_range(num_ranks):
                    if sender == rank:
                        part = tl.load(values + at, mask=at < count)
                    else:
                        place = place_of(number, sender, steps, step, num_ranks, width)
                        letter = mailboxes.letters[rank] + place + lanes
                        part = tl.load(letter, mask=at < count, cache_modifier=".cg")
                    if not summed:
                        row = tl.cast(sender, tl.int64) * count
                        tl.store(out + row + at, part, mask=at < count)
                    elif sender == 0:
                        total = part.to(tl.float32)
                    else:
                        total += part.to(tl.float32)
                if summed:
                    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < count)
        first += tl.num_programs(0) * steps * block
    if receives:
        tl.store(mailboxes.sent + tl.program_id(0), number)


@jit(do_not_specialize=["count"])
def _packed_kernel(
    values,
    out,
    mailboxes,
    count,
    rank: tl.constexpr,
    num_ranks: tl.constexpr,
    capacity: tl.constexpr,
    block: tl.constexpr,
    summed: tl.constexpr,
    sends: tl.constexpr,
    receives: tl.constexpr,
    overlap: tl.constexpr,
):
    """Exchange `count` elements of 2 or 4 bytes, `block` a program, packed with a number each."""
    begin_next(overlap)
    wait_for_last(overlap)
    number = tl.load(mailboxes.sent + tl.program_id(0)) + 1
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < count
    own = tl.load(values + at, mask=inside, other=0.0)
    places = (number & 1) * num_ranks * capacity + at
    if sends:
        word = _bits(own).to(tl.int64) & 0xFFFFFFFF | (number.to(tl.int64) << 32)
        for other in tl.static_range(num_ranks):
            if other != rank:
                tl.store(mailboxes.packed[other] + places + rank * capacity, word, mask=inside)
    if receives:
        total = tl.zeros((block,), tl.float32)
        for sender in tl.static_range(num_ranks):
            part = own
            if sender != rank:
                letter = mailboxes.packed[rank] + places + sender * capacity
                word = tl.load(letter, mask=inside, other=0, volatile=True)
                while tl.max((inside & ((word >> 32).to(tl.int32) != number)).to(tl.int32), 0) != 0:
                    word = tl.load(letter, mask=inside, other=0, volatile=True)
                part = _of_bits(word, own)
            if not summed:
                tl.store(out + sender * count + at, part, mask=inside)
            elif sender == 0:
                total = part.to(tl.float32)
            else:
                total += part.to(tl.float32)
        if summed:
            tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)
        tl.store(mailboxes.sent + tl.program_id(0), number)


@jit
def _bits(values):
    """The bits of values of 2 or 4 bytes as an integer of as many."""
    if values.dtype.primitive_bitwidth == 16:
        bits = values.to(tl.int16, bitcast=True)
    else:
        bits = values.to(tl.int32, bitcast=True)
    return bits


@jit
def _of_bits(word, like):
    """The values, of the dtype of `like`, whose bits the low halves of int64 words are."""
    if like.dtype.primitive_bitwidth == 16:
        values = word.to(tl.int16).to(like.dtype, bitcast=True)
    else:
        values = word.to(tl.int32).to(like.dtype, bitcast=True)
    return values


def gather_ranks(values: Tensor, mailboxes: Mailboxes, rank: int) -> Tensor:
    """Every rank's `values`, contiguous, as [ranks, *shape]; any dtype of whole words together.

    Raises:
        ValueError: they are not whole words of 4 bytes.
    """
    num_bytes = values.nbytes
    if num_bytes % 4:
        raise ValueError(f"an exchange takes whole words of 4 bytes, got {num_bytes} bytes")
    words = values.contiguous().view(-1).view(torch.int32)
    num_ranks = len(mailboxes.letters)
    out = torch.empty((num_ranks, len(words)), dtype=torch.int32, device=values.device)
    if len(words):
        _launch(words, out, mailboxes, rank, summed=False)
    return out.view(-1).view(values.dtype).view(num_ranks, *values.shape)


def sum_ranks(values: Tensor, mailboxes: Mailboxes, rank: int) -> Tensor:
    """The sum of all ranks' `values`, added in float32 from rank 0 on, in their dtype."""
    values = values.contiguous()
    out = torch.empty_like(values)
    if values.numel():
        _launch(values.view(-1), out.view(-1), mailboxes, rank, summed=True)
    return out


def _launch(
    values: Tensor,
    out: Tensor,
    mailboxes: Mailboxes,
    rank: int,
    *,
    summed: bool,
    sends: bool = True,
    receives: bool = True,
) -> None:
    """Launch a kernel; tests of one thread send for all ranks, then receive for all."""
    count, width = len(values), values.element_size()
    if count <= MAX_PACKED:
        _packed_kernel[(triton.cdiv(count, PACKED_BLOCK),)](
            values,
            out,
            mailboxes,
            count,
            rank=rank,
            num_ranks=len(mailboxes.letters),
            capacity=MAX_PACKED,
            block=PACKED_BLOCK,
            summed=summed,
            sends=sends,
            receives=receives,
            num_warps=8,
            enable_fp_fusion=False,
            **overlap_of(values),
        )
        return
    block = STEP_BYTES // width
    unit = UNIT if count % UNIT == 0 else 1
    num_chunks = triton.cdiv(count, block)
    steps = min(triton.cdiv(num_chunks, NUM_PROGRAMS), MAX_STEPS)
    letters = tuple(box.view(values.dtype) for box in mailboxes.letters)
    _exchange_kernel[(min(triton.cdiv(num_chunks, steps), NUM_PROGRAMS),)](
        values,
        out,
        mailboxes._replace(letters=letters),
        count // unit,
        steps,
        rank=rank,
        num_ranks=len(letters),
        unit=unit,
        width=width,
        block=block,
        summed=summed,
        sends=sends,
        receives=receives,
        num_warps=16,
        enable_fp_fusion=False,
        **overlap_of(values),
    )
