"""Logprobs of ids that are listed for each row, and of everything that is not listed.

Labels are scored by them: what a decision reads of a position are the labels' own logprobs, the
mass that went elsewhere, and the best token there.

Letters in shapes: N rows, J listed ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sampling.batch import ListedLogprobs
from sampling.device.triton_support import HAS_TRITON
from sampling.kernels.listed import listed
from sampling.paths.logprobs import first_ids, less_offsets, offsets_of, plain_source, values_of
from sampling.rows import LOGPROBS, NORMALIZED
from sampling.vocab_shard import VocabShard


def listed_logprobs(
    logits: Tensor, id_lists: Tensor, shard: VocabShard | None = None
) -> ListedLogprobs:
    """The logprobs of listed ids, of all other ids together, and of the best of these.

    The mass of the others is summed without the listed ones, not taken as a difference, so it is
    as exact where next to nothing is left.

    Args:
        logits: float32 [N, width], those of the shard; overwritten.
        id_lists: int32 [N, J], different ids of each row; -1 pads.
        shard: which ids the logits are of; None is all of the vocabulary.

    Returns:
        Values with NaN, and some id, in rows that hold NaN, +inf or no finite logit.
    """
    shard = shard or VocabShard.whole(logits.shape[1])
    if logits.is_cuda and HAS_TRITON and shard.is_whole:
        return listed_kernels(logits, id_lists)
    ids = torch.where(id_lists < 0, id_lists[:, :1], id_lists).long()
    offsets = offsets_of(logits, shard)
    bad = ~offsets.isfinite()
    values = less_offsets(values_of(logits, ids, shard), offsets).masked_fill_(
        bad[:, None], torch.nan
    )
    columns, held = shard.columns(ids)
    logits.scatter_reduce_(1, columns, torch.where(held, -torch.inf, torch.inf), "amin")
    others = (offsets_of(logits, shard) - offsets).float().masked_fill_(bad, torch.nan)
    best_ids = first_ids(logits, 1, shard)
    best = less_offsets(values_of(logits, best_ids, shard), offsets)[:, 0].masked_fill_(
        bad, torch.nan
    )
    return ListedLogprobs(values, others, best_ids[:, 0].int(), best, offsets)


def listed_kernels(logits: Tensor, id_lists: Tensor) -> ListedLogprobs:
    """`listed_logprobs` by the kernels that draw, of the whole vocabulary: values are bit-equal."""
    shard = VocabShard.whole(logits.shape[1])
    source = plain_source(logits, LOGPROBS | NORMALIZED, shard)
    return listed(source, id_lists)
