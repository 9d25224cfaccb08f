"""The sampler's work before a server is ready: compile its kernels, time FlashInfer."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sampling.batch import Drafts, SamplingBatch
from sampling.kernels.logits import Source
from sampling.kernels.logprobs import TOP_LANES
from sampling.kernels.tile_pass import tile_pass
from sampling.params import SamplingParams
from sampling.paths import triton_path
from sampling.paths.flashinfer import FlashInfer, scaled_logits
from sampling.paths.listed_logprobs import listed_kernels
from sampling.paths.logprobs import prompt_kernels
from sampling.rows import (
    EDITED,
    FILTERED,
    GRAMMAR,
    KEPT,
    LOGPROBS,
    PENALIZED,
    RANDOM,
    TWICE_FILTERED,
    SamplingNeeds,
    SamplingRows,
    rounded_top,
)
from sampling.speculative import verification


def compile_early(
    vocab_size: int, history_width: int, device: torch.device, max_top: int, *, has_masks: bool
) -> None:
    """Launch what draws from float32 logits can need, before there are rows to draw.

    Args:
        history_width: token ids that are kept of a row; kernels are compiled for its divisors.
        max_top: top tokens a request may ask for.
        has_masks: whether rows may have grammars.
    """
    history = torch.zeros((1, history_width), dtype=torch.int32, device=device)
    like = SamplingRows(1, vocab_size, device, history=history, max_masks=int(has_masks))
    compile_kernels(like, torch.float32, max_top)


def compile_kernels(like: SamplingRows, dtype: torch.dtype, max_top: int) -> None:
    """Launch every kernel that draws, prompt logprobs and labels can need; FlashInfer's too.

    Args:
        like: rows whose vocabulary, device and strides those of requests will be.
        dtype: of the logits.
        max_top: top tokens a request may ask for.
    """
    batch, rows = _batch(1, SamplingParams(), like)
    logits = torch.zeros(1, like.shard.width, dtype=dtype, device=like.device)
    for needs in _needs_of_kernels(like, max_top):
        triton_path.draw(logits, _needing(batch, needs), rows)
    for num_top in _tops(like, max_top):
        target_ids = torch.zeros(1, dtype=torch.int32, device=like.device)
        prompt_kernels(logits, target_ids, num_top, None, normalized=True, shard=like.shard)
    if like.shard.is_whole:
        listed_kernels(logits.float(), torch.zeros(1, 1, dtype=torch.int32, device=like.device))
        _compile_scaling(like, logits, batch, rows)


def _compile_scaling(
    like: SamplingRows, logits: Tensor, batch: SamplingBatch, rows: SamplingRows
) -> None:
    """Launch the kernels that make what FlashInfer draws from."""
    source = Source.of(logits, batch, rows)
    stats = tile_pass(source, edited=False, peaked=False, reported=False)
    for edited in (False, True):
        scaled_logits(source, stats, batch.positions, edited=edited)
    if _has_masks(like):  # rows of grammars may be beside those that FlashInfer draws
        masked = source._replace(mask_slots=torch.full_like(batch.rows, -1))
        scaled_logits(masked, stats, batch.positions, edited=True)


def compile_verification(
    like: SamplingRows,
    dtype: torch.dtype,
    max_top: int,
    num_drafts: int,
    draft_logits: Tensor | None,
    method: verification.Method,
    rates: Tensor | None,
) -> None:
    """Launch every kernel that verifying drafts can need beside those of `compile_kernels`.

    Args:
        like, dtype, max_top: as for `compile_kernels`.
        num_drafts: k.
        draft_logits, method, rates: those of every step, as for `verification.verify`.
    """
    width, device = 1 + num_drafts, like.device
    batch, rows = _batch(width, SamplingParams(), like)
    batch = dataclasses.replace(batch, depths=torch.zeros_like(batch.rows))
    logits = torch.zeros(width, like.shard.width, dtype=dtype, device=device)
    one = torch.ones(1, dtype=torch.int32, device=device)
    drafts = Drafts(
        starts=torch.zeros(1, dtype=torch.int64, device=device),
        num_drafts=one,
        token_ids=torch.zeros((1, num_drafts), dtype=torch.int32, device=device),
        room=one,
        logits=draft_logits,
    )
    for needs in _needs_of_kernels(like, max_top):
        for flags in (needs.flags, needs.flags & ~RANDOM):
            needing = _needing(batch, dataclasses.replace(needs, flags=flags))
            verification.verify(logits, needing, rows, drafts, method, rates)


def _needs_of_kernels(like: SamplingRows, max_top: int) -> Iterator[SamplingNeeds]:
    """Needs of random rows, one for each variant of the kernels that Triton compiles.

    Masks of grammars change only kernels that edit logits; what they keep changes none of those
    that make top lists.
    """
    edits = (0, EDITED | PENALIZED, GRAMMAR | EDITED | PENALIZED, GRAMMAR)[
        : 4 if _has_masks(like) else 2
    ]
    filters = (0, FILTERED | TWICE_FILTERED)
    for chosen in itertools.product(edits, filters, (0, LOGPROBS, LOGPROBS | KEPT)):
        flags = RANDOM | chosen[0] | chosen[1] | chosen[2]
        for num_top in _tops(like, max_top) if chosen[2] == LOGPROBS else (0,):
            yield SamplingNeeds(flags, greedy=False, num_top=num_top, num_explicit=0)


def _has_masks(rows: SamplingRows) -> bool:
    """Whether any of these rows may have a grammar."""
    return len(rows.grammar_masks) > 0


def _needing(batch: SamplingBatch, needs: SamplingNeeds) -> SamplingBatch:
    """The batch with other needs, and with masks where they have grammars."""
    slots = torch.full_like(batch.rows, -1) if needs.flags & GRAMMAR else None
    return dataclasses.replace(batch, needs=needs, mask_slots=slots)


def _tops(like: SamplingRows, max_top: int) -> list[int]:
    """Lengths of top lists: 0, and one for each variant of the kernel that makes them."""
    lanes = TOP_LANES[: bisect.bisect_left(TOP_LANES, rounded_top(max_top)) + 1]
    return [0, *(min(num_top, like.vocab_size) for num_top in lanes)]


def time_samplers(
    flashinfer: FlashInfer, num_rows: int, like: SamplingRows, dtype: torch.dtype
) -> tuple[float, float]:
    """Time a batch of top-k 50, top-p 0.95, native in a CUDA graph and by FlashInfer.

    Returns:
        Milliseconds of each.
    """
    params = SamplingParams(top_k=50, top_p=0.95)
    batch, rows = _batch(num_rows, params, like)
    logits = torch.randn(num_rows, like.vocab_size, device=like.device).mul_(3.0).to(dtype)
    triton_path.draw(logits, batch, rows)  # compiles outside the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        triton_path.draw(logits, batch, rows)
    return _time_ms(graph.replay), _time_ms(
        lambda: triton_path.draw(logits, batch, rows, flashinfer)
    )


def _batch(
    num_rows: int, params: SamplingParams, like: SamplingRows
) -> tuple[SamplingBatch, SamplingRows]:
    """Make logit rows that share one request, in tables whose strides are those of `like`."""
    device = like.device
    history = torch.zeros((1, like.history.shape[1]), dtype=torch.int32, device=device)
    rows = SamplingRows(1, like.vocab_size, device, history=history, shard=like.shard)
    rows.add(0, params, seed=0, choice=0, prompt_len=0, num_tokens=0)
    rows.flush()
    rows_np = np.zeros(num_rows, dtype=np.int32)
    batch = SamplingBatch(
        rows=torch.zeros(num_rows, dtype=torch.int32, device=device),
        positions=torch.arange(num_rows, device=device),
        rows_np=rows_np,
        needs=rows.needs(rows_np),
    )
    return batch, rows


def _time_ms(call: Callable[[], Any]) -> float:
    """Measure the median device time of a call in milliseconds."""
    times = []
    for attempt in range(8):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        end.synchronize()
        if attempt >= 3:  # the first calls compile and warm the caches
            times.append(start.elapsed_time(end))
    return float(np.median(times))
