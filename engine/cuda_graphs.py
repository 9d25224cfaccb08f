"""Decode steps as CUDA graphs over a ladder of batch sizes.

A step is two graphs. The first gathers the inputs of its rows on the device and runs the model to
hidden states. The second makes logits, draws and enters the tokens into their rows; there is one
for each size and each common `SamplingNeeds`, and rarer needs run the same code eagerly. A batch
between two sizes is padded with the scratch row, which reads and writes nothing of anyone's.

All graphs share one memory pool: only one runs at a time, so each may use the memory that the
others use in between. What must outlive a graph's run is held here.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.attention.base import AttentionBackend, AttentionInputs
from engine.batch import RequestRows
from engine.buffers import to_device
from engine.kernels.decode_steps import (
    DecodeInputs,
    RowState,
    enter_decoded,
    gather_decode_inputs,
)
from engine.models.base import CausalLM
from engine.request import Int32Array
from sampling import rows as flags
from sampling.rows import SamplingNeeds, SamplingRows
from sampling.sampler import Sampler, SamplerOutput, SamplingBatch

DRAWN, FILTERED = flags.RANDOM, flags.RANDOM | flags.FILTERED
PROCESSED = FILTERED | flags.TWICE_FILTERED | flags.MASKED | flags.EDITED | flags.PENALIZED
REPORTED = flags.LOGPROBS | flags.NORMALIZED
COMMON_NEEDS = (
    SamplingNeeds(flags=0, greedy=True, num_top=0, num_explicit=0),
    SamplingNeeds(flags=DRAWN, greedy=True, num_top=0, num_explicit=0),
    SamplingNeeds(flags=FILTERED, greedy=True, num_top=0, num_explicit=0),
    SamplingNeeds(flags=PROCESSED, greedy=True, num_top=0, num_explicit=0),
    SamplingNeeds(flags=DRAWN | REPORTED, greedy=True, num_top=5, num_explicit=0),
    SamplingNeeds(flags=FILTERED | REPORTED, greedy=True, num_top=20, num_explicit=0),
)
"""What is captured, cheapest first. A batch runs on the first that covers its own needs."""


def ladder(max_rows: int) -> tuple[int, ...]:
    """Sizes up to max_rows: every small one that halves, then steps of an eighth or less."""
    sizes = [size for size in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96) if size < max_rows]
    sizes += range(128, max_rows, 32 if max_rows <= 256 else 64)
    return (*sizes, max_rows)


def covers(captured: SamplingNeeds, needs: SamplingNeeds) -> bool:
    """Whether a graph captured for some needs serves a batch with others.

    Which path draws a row is not told by its needs alone; see `Sampler.is_capturable`.
    """
    return (
        needs.flags & ~captured.flags & ~flags.FLASHINFER == 0
        and needs.num_top <= captured.num_top
        and needs.num_explicit <= captured.num_explicit
    )


@dataclass(frozen=True)
class _Forward:
    graph: torch.cuda.CUDAGraph
    hidden: torch.Tensor


@dataclass(frozen=True)
class _Draw:
    graph: torch.cuda.CUDAGraph
    drawn: SamplerOutput


class DecodeGraphs:
    """Captures and replays decode steps.

    Attributes:
        sizes: batch sizes captured, ascending.
    """

    def __init__(
        self,
        model: CausalLM,
        attention: AttentionBackend,
        rows: RequestRows,
        sampling_rows: SamplingRows,
        sampler: Sampler,
    ) -> None:
        self.sizes = ladder(rows.scratch_row)
        self._model = model
        self._attention = attention
        self._rows = rows
        self._sampling_rows = sampling_rows
        self._sampler = sampler
        self._state = RowState(rows.token_ids, rows.num_computed, rows.block_tables)
        largest, device = self.sizes[-1], rows.device
        self._row_ids = torch.full((largest,), rows.scratch_row, device=device)
        self._row_ids_np = np.full(largest, rows.scratch_row, dtype=np.int64)
        self._inputs = DecodeInputs.empty(largest, rows.block_tables.shape[1], device)
        self._starts_np = np.arange(largest + 1, dtype=np.int32)
        self._starts = torch.from_numpy(self._starts_np).to(device)
        self._longest_np = np.full(largest, rows.token_ids.shape[1], dtype=np.int32)
        self._forwards: dict[int, _Forward] = {}
        self._draws: dict[tuple[int, SamplingNeeds], _Draw] = {}

    # -- capture ----------------------------------------------------------------------------

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture every size, the largest first so that the others fit into its memory."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        pool = torch.cuda.graph_pool_handle()
        needs = [each for each in COMMON_NEEDS if self._sampler.is_capturable(each)]
        with torch.cuda.stream(stream), _no_collection():
            for size in reversed(self.sizes):
                warm = self._forward(size)  # compiles kernels and makes library handles
                graph = torch.cuda.CUDAGraph()
                with _capturing(graph, pool):
                    hidden = self._forward(size)
                self._forwards[size] = _Forward(graph, hidden)
                for each in needs:
                    self._draw(size, warm, each)
                    graph = torch.cuda.CUDAGraph()
                    with _capturing(graph, pool):
                        drawn = self._draw(size, hidden, each)
                    self._draws[size, each] = _Draw(graph, drawn)
        torch.cuda.current_stream().wait_stream(stream)

    def _forward(self, size: int) -> torch.Tensor:
        """Hidden states [size, hidden_size] of the rows in `_row_ids`."""
        inputs = DecodeInputs(*(tensor[:size] for tensor in self._inputs))
        gather_decode_inputs(self._row_ids[:size], self._state, inputs, self._rows.block_size)
        self._attention.begin(
            AttentionInputs(
                query_starts=self._starts[: size + 1],
                query_starts_np=self._starts_np[: size + 1],
                seq_lens=inputs.seq_lens,
                block_tables=inputs.block_tables,
                slots=inputs.slots,
                seq_lens_np=self._longest_np[:size],
                max_query_len=1,
            )
        )
        return self._model.forward(inputs.input_ids, inputs.positions, self._attention)

    def _draw(self, size: int, hidden: torch.Tensor, needs: SamplingNeeds) -> SamplerOutput:
        """Tokens of the first `size` rows in `_row_ids`, entered into them."""
        rows = self._row_ids[:size]
        batch = SamplingBatch(
            rows=rows.to(torch.int32),
            positions=self._inputs.draw_positions[:size],
            rows_np=self._row_ids_np[:size].astype(np.int32),
            needs=needs,
        )
        drawn = self._sampler.draw(self._model.logits(hidden[:size]), batch)
        enter_decoded(rows, drawn.token_ids, self._state)
        return drawn

    # -- replay -----------------------------------------------------------------------------

    def replay(self, rows: Int32Array) -> SamplerOutput:
        """One decode step of rows [n]: outputs of n or more rows, valid until the next replay."""
        size = next(size for size in self.sizes if size >= len(rows))
        self._load(rows, size)
        forward = self._forwards[size]
        forward.graph.replay()
        needs = self._sampling_rows.needs(rows)
        self._sampler.count(rows)
        draw = self._captured_draw(size, needs)
        if draw is None:
            return self._draw(len(rows), forward.hidden, needs)
        draw.graph.replay()
        return draw.drawn

    def _captured_draw(self, size: int, needs: SamplingNeeds) -> _Draw | None:
        if not self._sampler.is_capturable(needs):
            return None
        draws = (self._draws.get((size, each)) for each in COMMON_NEEDS if covers(each, needs))
        return next((draw for draw in draws if draw is not None), None)

    def _load(self, rows: Int32Array, size: int) -> None:
        """Publish which rows the step is of; nothing to do where they are those of the last."""
        wanted = np.full(size, self._rows.scratch_row, dtype=np.int64)
        wanted[: len(rows)] = rows
        if np.array_equal(self._row_ids_np[:size], wanted):
            return
        self._row_ids_np[:size] = wanted
        self._row_ids[:size].copy_(to_device(wanted, self._rows.device))


@contextlib.contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Capture on the current stream. torch.cuda.graph would collect garbage each time."""
    graph.capture_begin(pool=pool)
    try:
        yield
    finally:
        graph.capture_end()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """A collection during a capture could free a tensor, which a capture does not allow."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
