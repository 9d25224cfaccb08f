"""Captures decode steps as CUDA graphs for a ladder of batch sizes, and replays them.

A step is two graphs, the halves of a `DecodeStep`: one for each size, and one for each size and
each common `SamplingNeeds`; rarer needs run the same code eagerly. A lone row's step is one graph,
where it needs what most do. The second half draws after steps of other shapes too. With a drafter
there are steps that verify some number of drafts and make as many for the next one, and steps of
rows that do without. A batch between two sizes is padded with the scratch row, which reads and
writes nothing of anyone's.

All graphs share one memory pool, those of `piecewise_graphs` and `whole_graphs` too: only one runs
at a time, so each may use the memory that the others use in between. Tensors that are read after a
graph has run are held here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.arrays import Int32Array
from engine.batch import RequestRows, StepInputs
from engine.contracts.attention import AttentionBackend
from engine.contracts.model import Hidden
from engine.contracts.runner import StepCosts
from engine.memory.states import RowStates
from engine.plan import StepPlan
from engine.progress import report
from engine.runner.adapters import RunnerAdapters
from engine.runner.graphs.captured_batches import (
    COMMON_NEEDS,
    LONE_NEEDS,
    MEASURED_NEEDS,
    MEASURED_STEPS,
    covers,
    ladder,
)
from engine.runner.graphs.capturing import capturing, capturing_stream
from engine.runner.graphs.decode_step import DecodeStep, StepRows
from engine.runner.host_copy import Packed
from engine.runner.step import TokenStage
from engine.speculative_config import draft_counts
from sampling.device.mirror import to_device
from sampling.rows import SamplingNeeds, SamplingRows


@dataclass(frozen=True)
class _Forward:
    graph: torch.cuda.CUDAGraph
    hidden: Hidden


@dataclass(frozen=True)
class _Draw:
    """A graph that draws, after the forward's or with it."""

    graph: torch.cuda.CUDAGraph
    tokens: Packed

    def replay(self) -> Packed:
        """Draw into `tokens`."""
        self.tokens.await_copied()
        self.graph.replay()
        return self.tokens


class DecodeGraphs:
    """Captures and replays decode steps.

    Attributes:
        sizes: batch sizes captured, ascending.
    """

    def __init__(
        self,
        stage: TokenStage,
        attention: AttentionBackend,
        rows: RequestRows,
        sampling_rows: SamplingRows,
        states: RowStates | None = None,
        adapters: RunnerAdapters | None = None,
    ) -> None:
        self.sizes = ladder(rows.scratch_row)
        self._rows = rows
        self._sampling_rows = sampling_rows
        self._sampler = stage.sampler
        self._step_rows = StepRows(rows)
        self._steps = {
            num_drafts: DecodeStep(
                stage, attention, rows, self._step_rows, num_drafts, states, adapters
            )
            for num_drafts in (0, *draft_counts(rows.drafts.shape[1]))
        }
        self._serves_adapters = adapters is not None
        self._head = adapters if adapters is not None and adapters.has_head else None
        self._adapted: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._adapted_lone: dict[SamplingNeeds, _Draw] = {}
        self._forwards: dict[tuple[int, int], _Forward] = {}
        self._draws: dict[tuple[int, int, SamplingNeeds], _Draw] = {}
        self._lone: dict[SamplingNeeds, _Draw] = {}
        self._published: tuple[int, bytes] | None = None  # a size, and the rows of it
        self._entered_adapters: tuple[int, int, bytes] | None = None

    # -- capture ----------------------------------------------------------------------------

    @torch.inference_mode()
    def capture(self, pool: Any) -> None:
        """Capture every size into a memory pool, the largest first so that the others fit."""
        with capturing_stream():
            total = len(self._steps) * len(self.sizes)
            for step in reversed(self._steps.values()):
                for size in reversed(self.sizes):
                    report(len(self._forwards), total)
                    self._capture(step, size, pool)

    @torch.inference_mode()
    def step_costs(self) -> StepCosts | None:
        """Measure steps of every size and number of drafts; None without a drafter.

        The rows are the scratch row, which has no context. Attention over a context takes all
        kinds of step alike, so drafting costs at most what is found.
        """
        draws = [
            self._captured_draw(step, size, MEASURED_NEEDS)
            for step in self._steps.values()
            for size in self.sizes
        ]
        if len(self._steps) == 1 or None in draws:
            return None
        seconds = {
            num_drafts: tuple(self._measure(step, size) for size in self.sizes)
            for num_drafts, step in self._steps.items()
        }
        return StepCosts(self.sizes, seconds)

    def _measure(self, step: DecodeStep, size: int) -> float:
        """The seconds that a captured step takes the device, the least of a few."""
        forward = self._forwards[step.num_drafts, size].graph
        drawn, times = self._captured_draw(step, size, MEASURED_NEEDS), []
        assert drawn is not None
        for _ in range(MEASURED_STEPS):
            start, end = _timed_event(), _timed_event()
            start.record()
            forward.replay()
            drawn.graph.replay()
            end.record()
            end.synchronize()
            times.append(float(start.elapsed_time(end)) / 1000.0)
        return min(times)

    def _capture(self, step: DecodeStep, size: int, pool: Any) -> None:
        warm = step.forward(size)  # compiles kernels and makes library handles
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, pool):
            hidden = step.forward(size)
        self._forwards[step.num_drafts, size] = _Forward(graph, hidden)
        if self._serves_adapters:
            self._capture_adapted(step, size, hidden, pool)
        for needs in COMMON_NEEDS:
            if not self._is_capturable(step, needs):
                continue
            tokens = Packed(step.draw(size, warm, needs).named(), size)
            graph = torch.cuda.CUDAGraph()
            with capturing(graph, pool):
                tokens.pack(step.draw(size, hidden, needs).named())
            self._draws[step.num_drafts, size, needs] = _Draw(graph, tokens)
            if size == 1 and not step.num_drafts and needs in LONE_NEEDS:
                self._lone[needs] = self._capture_lone(step.forward, step, needs, tokens, pool)
                if self._serves_adapters:
                    forward = step.forward_adapted
                    lone = self._capture_lone(forward, step, needs, tokens, pool)
                    self._adapted_lone[needs] = lone

    def _capture_adapted(self, step: DecodeStep, size: int, hidden: Hidden, pool: Any) -> None:
        """Capture the forward of rows with adapters; what it makes goes where draws read it."""
        graph = torch.cuda.CUDAGraph()
        step.forward_adapted(size)  # compiles kernels
        with capturing(graph, pool):
            hidden.copy_(step.forward_adapted(size))
        self._adapted[step.num_drafts, size] = graph

    def _capture_lone(
        self,
        forward: Callable[[int], Hidden],
        step: DecodeStep,
        needs: SamplingNeeds,
        tokens: Packed,
        pool: Any,
    ) -> _Draw:
        """Capture both halves of a lone row's step in one graph."""
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, pool):
            tokens.pack(step.draw(1, forward(1), needs).named())
        return _Draw(graph, tokens)

    def _is_capturable(self, step: DecodeStep, needs: SamplingNeeds) -> bool:
        """Whether a draw for these needs looks at nothing on the host; verification never does."""
        return step.num_drafts > 0 or self._sampler.is_capturable(needs)

    # -- replay -----------------------------------------------------------------------------

    def replay(self, plan: StepPlan) -> Packed | None:
        """Run a whole decode step, as `replay_draw`; None, where nothing ran: it has two graphs."""
        rows = plan.rows
        if len(rows) > 1 or plan.num_drafts:
            return None
        needs = self._sampling_rows.needs(rows)
        graphs = self._lone if plan.adapters is None else self._adapted_lone
        lone = next((graphs.get(each) for each in LONE_NEEDS if covers(each, needs)), None)
        if lone is None:
            return None
        self._publish(rows, 1)
        self._put_adapters(plan.num_drafts, plan.adapters, 1)
        return lone.replay()

    def replay_forward(self, plan: StepPlan) -> None:
        """Run the first half of a decode step."""
        size = self._size_of(len(plan.rows))
        self._publish(plan.rows, size)
        self._put_adapters(plan.num_drafts, plan.adapters, size)
        if plan.adapters is None:
            self._forwards[plan.num_drafts, size].graph.replay()
        else:
            self._adapted[plan.num_drafts, size].replay()

    def _put_adapters(self, num_drafts: int, slots: Int32Array | None, size: int) -> None:
        """Tell the device the rows' adapters, unless they are those of the step before.

        Where rows have none it is set too, if draws read them.
        """
        if slots is None:
            if self._head is None:
                return
            slots = np.empty(0, dtype=np.int32)
        entered = (num_drafts, size, slots.tobytes())
        if entered != self._entered_adapters:
            self._steps[num_drafts].put_adapters(slots, size)
            self._entered_adapters = entered

    def replay_draw(self, plan: StepPlan, mask_slots: torch.Tensor | None) -> Packed:
        """Run the second half of the step begun last: its `StepTokens`, perhaps of more rows.

        Args:
            mask_slots: int32 [N], of the step's logit rows; None where they have no masks.
        """
        rows, step, size = plan.rows, self._steps[plan.num_drafts], self._size_of(len(plan.rows))
        if mask_slots is not None:
            step.put_mask_slots(mask_slots)
        needs = self._sampling_rows.needs(rows)
        draw = self._captured_draw(step, size, needs)
        if draw is None:
            hidden = self._forwards[step.num_drafts, size].hidden
            return Packed(step.draw(len(rows), hidden, needs).named(), len(rows))
        return draw.replay()

    def replay_draw_of(
        self,
        plan: StepPlan,
        inputs: StepInputs,
        hidden: Hidden,
        mask_slots: torch.Tensor | None,
    ) -> Packed | None:
        """Run the second half of a step of any shape without drafts, as `replay_draw`.

        Its query tokens count as computed, but the last of each row that draws.

        Returns:
            None, where nothing ran: no graph was captured for what the rows need.
        """
        sampling, tokens, step = inputs.sampling, inputs.logit_tokens, self._steps[0]
        if sampling is None or isinstance(tokens, slice):
            return None
        rows = sampling.rows_np
        size = self._size_of(len(rows))
        draw = self._captured_draw(step, size, sampling.needs)
        if draw is None:
            return None
        self._publish(rows, size)
        if self._head is not None:
            self._put_adapters(0, self._head.slots_of(plan, rows), size)
        step.gather(size)
        held = self._forwards[0, size].hidden.final[: len(rows)]
        torch.index_select(hidden.final, 0, tokens, out=held)
        if mask_slots is not None:
            step.put_mask_slots(mask_slots)
        return draw.replay()

    def _size_of(self, num_rows: int) -> int:
        """The captured batch size that so many rows are padded to."""
        return next(size for size in self.sizes if size >= num_rows)

    def _captured_draw(self, step: DecodeStep, size: int, needs: SamplingNeeds) -> _Draw | None:
        if not self._is_capturable(step, needs):
            return None
        covering = (each for each in COMMON_NEEDS if covers(each, needs))
        draws = (self._draws.get((step.num_drafts, size, each)) for each in covering)
        return next((draw for draw in draws if draw is not None), None)

    def _publish(self, rows: Int32Array, size: int) -> None:
        """Tell the device the step's rows, unless they are those of the step before."""
        if self._published == (published := (size, rows.tobytes())):
            return
        self._published = None  # until the copy is on its way
        wanted = np.full(size, self._rows.scratch_row, dtype=np.int64)
        wanted[: len(rows)] = rows
        self._step_rows.ids_np[:size] = wanted
        self._step_rows.ids[:size].copy_(to_device(wanted, self._rows.device))
        self._published = published


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
