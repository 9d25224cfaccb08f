# mypy: allow-untyped-defs, allow-incomplete-defs
"""Logprobs of listed ids and of all others in Triton; `paths.listed_logprobs` defines them.

The tiles are measured, then once more without the listed ids: the greedy token of what is left is
the best of the others. A dozen launches do that for any number of rows, whose host time is a part
of the latency of a lone question.
"""

from __future__ import annotations

from torch import Tensor

from sampling.batch import ListedLogprobs
from sampling.device.triton_support import jit, tl
from sampling.kernels.logits import Source
from sampling.kernels.race import Picked, pick
from sampling.kernels.tile_pass import tile_pass

LANES = 128  # ids of a row that are looked at together


@jit
def _reported(values, offset):
    """float32(value - offset); -inf stays, and where the offset is not finite all is NaN."""
    finite = offset - offset == 0.0
    found = tl.where(values == float("-inf"), values, (values.to(tl.float64) - offset))
    return tl.where(finite, found, float("nan")).to(tl.float32)


@jit(
    do_not_specialize=["num_ids", "ids_stride"],
    do_not_specialize_on_alignment=["id_lists"],  # a part of a step's begins anywhere
)
def _take_out_kernel(
    logits,
    logits_stride,
    vocab_size,
    id_lists,
    ids_stride,
    offsets,
    values,
    num_ids,
    lanes: tl.constexpr,
):
    """Report a row's listed ids, then take them out of its logits."""
    i = tl.program_id(0).to(tl.int64)
    row, ids_of_row = logits + i * logits_stride, id_lists + i * ids_stride
    offset = tl.load(offsets + i)
    for first in range(0, num_ids, lanes):
        lane = first + tl.arange(0, lanes)
        ids = tl.load(ids_of_row + lane, mask=lane < num_ids, other=-1)
        inside = (ids >= 0) & (ids < vocab_size)
        x = tl.load(row + ids, mask=inside, other=float("-inf"))
        tl.store(values + i * num_ids + lane, _reported(x, offset), mask=lane < num_ids)
    tl.debug_barrier()  # an id that is there twice is read twice before it goes
    for first in range(0, num_ids, lanes):
        lane = first + tl.arange(0, lanes)
        ids = tl.load(ids_of_row + lane, mask=lane < num_ids, other=-1)
        tl.store(row + ids, float("-inf"), mask=(ids >= 0) & (ids < vocab_size))


@jit
def _others_kernel(logits, logits_stride, offsets, left, best_ids, others, best):
    """Report the mass that is left of a row, and the best token of it."""
    i = tl.program_id(0).to(tl.int64)
    offset = tl.load(offsets + i)
    tl.store(others + i, _reported(tl.load(left + i), offset))
    x = tl.load(logits + i * logits_stride + tl.load(best_ids + i))
    tl.store(best + i, _reported(x, offset))


def listed(source: Source, id_lists: Tensor) -> ListedLogprobs:
    """The logprobs of listed ids, of all others together, and of the best of these.

    Args:
        source: of greedy rows of the whole vocabulary that nothing processes and whose flags ask
            for logprobs; its logits, float32, are overwritten.
        id_lists: int32 [n, J], contiguous; ids outside the vocabulary are not looked at.
    """
    logits, (n, num_ids) = source.logits, id_lists.shape
    assert id_lists.is_contiguous()
    offsets = _highest(source).offsets
    values = logits.new_empty((n, num_ids))
    others, best = logits.new_empty(n), logits.new_empty(n)
    row = (logits, source.logits_stride)
    _take_out_kernel[(n,)](
        *row,
        source.vocab_size,
        id_lists,
        num_ids,
        offsets,
        values,
        num_ids,
        lanes=LANES,
        num_warps=1,
    )
    left = _highest(source)
    _others_kernel[(n,)](*row, offsets, left.offsets, left.token_ids, others, best, num_warps=1)
    return ListedLogprobs(values, others, left.token_ids, best, offsets)


def _highest(source: Source) -> Picked:
    """The highest logit of each row, and the log-sum-exp of all."""
    stats = tile_pass(source, edited=False, peaked=False, reported=True)
    return pick(source, stats, None, edited=False, reported=True)
