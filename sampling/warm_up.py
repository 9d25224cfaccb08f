"""What the sampler does before a server is ready: compile kernels, time FlashInfer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from sampling import triton_path
from sampling.batch import SamplingBatch
from sampling.flashinfer import FlashInfer
from sampling.params import SamplingParams
from sampling.rows import (
    EDITED,
    FILTERED,
    LOGPROBS,
    PENALIZED,
    RANDOM,
    TWICE_FILTERED,
    SamplingNeeds,
    SamplingRows,
)


def compile_kernels(like: SamplingRows, dtype: torch.dtype) -> None:
    """Compile the kernels of every combination of stages, for logits of one vocabulary and dtype.

    Lists of logprobs are compiled for the shortest lengths only.
    """
    batch, rows = _batch(1, SamplingParams(), like)
    logits = torch.zeros(1, like.vocab_size, dtype=dtype, device=like.device)
    stages = (EDITED | PENALIZED, FILTERED | TWICE_FILTERED, LOGPROBS)
    for chosen in itertools.product((0, 1), repeat=len(stages)):
        flags = RANDOM + sum(bits * wanted for bits, wanted in zip(stages, chosen, strict=True))
        needs = SamplingNeeds(flags, greedy=False, num_top=0, num_explicit=0)
        wanted = SamplingBatch(batch.rows, batch.positions, batch.rows_np, needs)
        triton_path.draw(logits, wanted, rows)


def race_of_samplers(
    flashinfer: FlashInfer, num_rows: int, like: SamplingRows, dtype: torch.dtype
) -> tuple[float, float]:
    """Milliseconds a batch of top-k 50, top-p 0.95 takes: native in a CUDA graph, FlashInfer."""
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
    """Logit rows that share one request, in tables whose strides are those of `like`."""
    device = like.device
    history = torch.zeros((1, like.history.shape[1]), dtype=torch.int32, device=device)
    rows = SamplingRows(1, like.vocab_size, device, history=history)
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
    """Median device time of a call."""
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
