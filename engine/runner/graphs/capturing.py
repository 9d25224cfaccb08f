"""Captures CUDA graphs, on a stream of their own."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Capture on the current stream; torch.cuda.graph would collect garbage each time.

    Other threads may load FlashInfer's modules meanwhile, so only this one's calls are watched.
    """
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        yield
    finally:
        graph.capture_end()


@contextlib.contextmanager
def capturing_stream() -> Iterator[None]:
    """Run the block on a stream of its own with garbage collection off.

    A collection could free a tensor, which is not allowed while a graph is captured.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        gc.enable()
    torch.cuda.current_stream().wait_stream(stream)
