# mypy: allow-untyped-defs, allow-incomplete-defs
"""The kernel that counts drawn tokens for the penalties."""

from __future__ import annotations

from torch import Tensor

from sampling.device.triton_support import jit, tl
from sampling.kernels.logits import COUNT_SHIFT, PENALIZED, Source
from sampling.kernels.row_params import load_flags, sampling_row


@jit
def _count_tokens_kernel(source, token_ids_ptr, bad_ptr):
    i = tl.program_id(0)
    row = sampling_row(source, i)
    flags = load_flags(source, row)
    counted = ((flags & PENALIZED) != 0) & (tl.load(bad_ptr + i) == 0)
    unit = tl.full((), 1, tl.int32) << COUNT_SHIFT
    word = source.counts + row * source.vocab_size + tl.load(token_ids_ptr + i)
    tl.atomic_add(word, unit, mask=counted)


def count_tokens(source: Source, token_ids: Tensor, bad: Tensor) -> None:
    """Count an output token for every penalised row that is not bad.

    Args:
        source: whose rows; one may occur more than once.
        token_ids: int32 [n].
        bad: bool or uint8 [n], not 0 where bad.
    """
    _count_tokens_kernel[(len(token_ids),)](source, token_ids, bad, num_warps=1)
