"""Decode steps as CUDA graphs over a ladder of batch sizes.

A step is two graphs, the halves of a `DecodeStep`: one for each size, and one for each size and
each common `SamplingNeeds`; rarer needs run the same code eagerly. With a drafter there are steps
that verify drafts and make the next ones, and steps of rows that do without. A batch between two
sizes is padded with the scratch row, which reads and writes nothing of anyone's.

All graphs share one memory pool, those of `engine.runner.piecewise_graphs` too: only one runs at a
time, so each may use the memory that the others use in between. What must outlive a graph's run is
held here.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.batch import RequestRows
from engine.buffers import to_device
from engine.contracts.attention import AttentionBackend
from engine.contracts.model import CausalLM
from engine.plan import StepPlan
from engine.request import Int32Array
from engine.runner.decode_step import DecodeStep, StepRows
from engine.runner.forward import Hidden
from engine.runner.speculation import Drawn, Speculation
from sampling import rows as flags
from sampling.rows import SamplingNeeds, SamplingRows
from sampling.sampler import Sampler

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
    hidden: Hidden


@dataclass(frozen=True)
class _Draw:
    graph: torch.cuda.CUDAGraph
    drawn: Drawn


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
        speculation: Speculation | None = None,
    ) -> None:
        self.sizes = ladder(rows.scratch_row)
        self._rows = rows
        self._sampling_rows = sampling_rows
        self._sampler = sampler
        self._step_rows = StepRows(rows)
        kinds = [None] if speculation is None else [None, speculation]
        steps = [DecodeStep(model, attention, rows, sampler, self._step_rows, k) for k in kinds]
        self._steps = {step.num_drafts: step for step in steps}
        self._forwards: dict[tuple[int, int], _Forward] = {}
        self._draws: dict[tuple[int, int, SamplingNeeds], _Draw] = {}

    # -- capture ----------------------------------------------------------------------------

    @torch.inference_mode()
    def capture(self, pool: Any) -> None:
        """Capture every size into a memory pool, the largest first so that the others fit."""
        with capturing_stream():
            for step in reversed(self._steps.values()):
                for size in reversed(self.sizes):
                    self._capture(step, size, pool)

    def _capture(self, step: DecodeStep, size: int, pool: Any) -> None:
        warm = step.forward(size)  # compiles kernels and makes library handles
        graph = torch.cuda.CUDAGraph()
        with _capturing(graph, pool):
            hidden = step.forward(size)
        self._forwards[step.num_drafts, size] = _Forward(graph, hidden)
        for needs in COMMON_NEEDS:
            if not self._is_capturable(step, needs):
                continue
            step.draw(size, warm, needs)
            graph = torch.cuda.CUDAGraph()
            with _capturing(graph, pool):
                drawn = step.draw(size, hidden, needs)
            self._draws[step.num_drafts, size, needs] = _Draw(graph, drawn)

    def _is_capturable(self, step: DecodeStep, needs: SamplingNeeds) -> bool:
        """Drafts are never verified by a path that looks at values on the host."""
        return step.num_drafts > 0 or self._sampler.is_capturable(needs)

    # -- replay -----------------------------------------------------------------------------

    def replay(self, plan: StepPlan) -> Drawn:
        """One decode step; its outputs are valid until the next replay."""
        rows, step = plan.rows, self._steps[plan.num_drafts]
        size = next(size for size in self.sizes if size >= len(rows))
        self._load(rows, size)
        forward = self._forwards[step.num_drafts, size]
        forward.graph.replay()
        needs = self._sampling_rows.needs(rows)
        self._sampler.count(rows, verified=plan.num_drafts > 0)
        draw = self._captured_draw(step, size, needs)
        if draw is None:
            return step.draw(len(rows), forward.hidden, needs)
        draw.graph.replay()
        return draw.drawn.of_rows(len(rows))

    def _captured_draw(self, step: DecodeStep, size: int, needs: SamplingNeeds) -> _Draw | None:
        if not self._is_capturable(step, needs):
            return None
        covering = (each for each in COMMON_NEEDS if covers(each, needs))
        draws = (self._draws.get((step.num_drafts, size, each)) for each in covering)
        return next((draw for draw in draws if draw is not None), None)

    def _load(self, rows: Int32Array, size: int) -> None:
        """Publish which rows the step is of; nothing to do where they are those of the last."""
        wanted = np.full(size, self._rows.scratch_row, dtype=np.int64)
        wanted[: len(rows)] = rows
        if np.array_equal(self._step_rows.ids_np[:size], wanted):
            return
        self._step_rows.ids_np[:size] = wanted
        self._step_rows.ids[:size].copy_(to_device(wanted, self._rows.device))


@contextlib.contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Capture on the current stream. torch.cuda.graph would collect garbage each time."""
    graph.capture_begin(pool=pool)
    try:
        yield
    finally:
        graph.capture_end()


@contextlib.contextmanager
def capturing_stream() -> Iterator[None]:
    """A stream to capture on, and no collection: it could free a tensor, which is not allowed."""
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
