# mypy: allow-untyped-defs, allow-incomplete-defs
"""Finds n-gram matches on the device; `engine.speculation.ngram` has definition and torch twin."""

from __future__ import annotations

import torch

from sampling.device.triton_support import jit, tl, triton

BLOCK = 1024


@jit
def _ngram_kernel(
    history_ptr,
    rows_ptr,
    lengths_ptr,
    drafts_ptr,
    max_len,
    num_tokens,
    min_n,
    max_n,
    BLOCK: tl.constexpr,  # noqa: N803
    DRAFTS: tl.constexpr,  # noqa: N803
):
    """A program takes a row. It ranks places by (tokens that match, place); the highest wins."""
    i = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_ptr + i)
    tokens = history_ptr + tl.load(rows_ptr + i).to(tl.int64) * max_len
    best = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, length - 1, BLOCK):
        ends = start + tl.arange(0, BLOCK).to(tl.int64)  # where an earlier n-gram may end
        going_on = ends < length - 1
        matched = tl.zeros((BLOCK,), tl.int64)
        for n in range(max_n):
            going_on = going_on & (ends >= n)
            earlier = tl.load(tokens + ends - n, mask=going_on, other=-1)
            newest = tl.load(tokens + tl.maximum(length - 1 - n, 0))
            going_on = going_on & (earlier == newest)
            matched += going_on.to(tl.int64)
        rank = tl.where(matched >= min_n, matched << 32 | ends, 0)
        best = tl.maximum(best, rank)
    winner = tl.max(best, 0)
    following = (winner & 0xFFFFFFFF) + 1
    ahead = tl.arange(0, DRAFTS).to(tl.int64)
    period = tl.maximum(length - following, 1)
    source = tokens + following + ahead % period
    drafts = tl.load(source, mask=ahead < num_tokens, other=-1)
    drafts = tl.where(winner > 0, drafts, -1)  # without a match, what was read is of no meaning
    tl.store(drafts_ptr + i * num_tokens + ahead, drafts, mask=ahead < num_tokens)


def ngram_drafts_triton(
    history: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    num_tokens: int,
    min_n: int,
    max_n: int,
) -> torch.Tensor:
    """Compute `ngram_drafts` of `engine.speculation.ngram` in a kernel; history contiguous."""
    assert history.is_contiguous()
    drafts = torch.empty((len(rows), num_tokens), dtype=torch.int32, device=history.device)
    if len(rows):
        _ngram_kernel[(len(rows),)](
            history,
            rows,
            lengths,
            drafts,
            history.shape[1],
            num_tokens,
            min_n,
            max_n,
            BLOCK=BLOCK,
            DRAFTS=triton.next_power_of_2(num_tokens),
        )
    return drafts
