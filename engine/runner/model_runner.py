"""Runs steps on the device: prepare, forward, draw, copy out. Nothing waits for results.

A step is begun (rows published, forward issued) and finished (masks published, draw issued). Both
are one launch, or two where the step awaits masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from engine.adapters.product import HostAdapter
from engine.arrays import Int32Array, Int64Array
from engine.batch import RequestRows, StepInputs
from engine.contracts.control import MemoryPart
from engine.contracts.model import Hidden
from engine.contracts.named_weights import NamedWeights
from engine.contracts.runner import RouteArrays, RunnerLostError, StepCosts
from engine.contracts.scoring import ScoringPlan
from engine.contracts.weights import AnyWeightCommand, WeightReply
from engine.errors import first_line
from engine.kernels.lora.groups import TokenGroups
from engine.memory.sleeping import FixedMemory, SleepingMemory
from engine.memory.states import RowStates, StepStates
from engine.plan import StepMasks, StepPlan
from engine.runner.adapters import HeadLogits, RunnerAdapters, of_tokens
from engine.runner.forward import Forward
from engine.runner.gather import gather_inputs
from engine.runner.graphs.decode_graphs import DecodeGraphs
from engine.runner.host_copy import HostCopy, Packed
from engine.runner.host_gather import gather_on_host, serves
from engine.runner.host_masks import HostMasks
from engine.runner.host_stream import HostStream, InlineLauncher
from engine.runner.host_threads import threads_for
from engine.runner.launched import LaunchedScoring, LaunchedStep, wait_for
from engine.runner.prompt_logprobs import span_logprobs
from engine.runner.rank_memory import RankMemory
from engine.runner.scoring import issue_scoring
from engine.runner.step import TokenStage
from engine.runner.step_states import step_states
from engine.weights.commands import RankWeights
from sampling.device.mirror import to_device
from sampling.rows import SamplingRows

Loads = Sequence[tuple[int, HostAdapter]]
Threads = Callable[[int], AbstractContextManager[None]]
"""Chooses the host's threads for a step of so many tokens."""


class ModelRunner:
    """Runs plans against a model, its cache and its rows, in the order they are launched.

    Args:
        forward: of the stage's model; it runs every step the graphs do not.
        stage: the second half of those steps.
        graphs: captured, for steps in which every row decodes; None runs these eagerly too.
        states: of rows, where the model's layers keep them.
        memory: of this rank; None where it is never given back.

    Attributes:
        adapters: that rows may have; None where none are served.
    """

    def __init__(
        self,
        forward: Forward,
        stage: TokenStage,
        rows: RequestRows,
        sampling_rows: SamplingRows,
        graphs: DecodeGraphs | None = None,
        states: RowStates | None = None,
        adapters: RunnerAdapters | None = None,
        memory: SleepingMemory | None = None,
    ) -> None:
        self.adapters = adapters
        self._logits = HeadLogits(stage.model, adapters)
        self._forward = forward
        self._stage = stage
        self._rows = rows
        self._sampling_rows = sampling_rows
        self._graphs = graphs
        self._states = states
        self._memory = RankMemory(memory or FixedMemory(), sampling_rows.shard.exchange)
        self._masks = HostMasks(sampling_rows)
        on_cpu = rows.device.type == "cpu"
        self._launcher = HostStream() if on_cpu else InlineLauncher()
        self._threads: Threads = threads_for if on_cpu else lambda num_tokens: nullcontext()

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Issue a step after those already issued; where it awaits masks, all but its draw."""
        loads = self._loads(plan)
        if not plan.awaits_masks:
            return LaunchedStep(plan, self._in_order(plan.num_tokens, self._issue, plan, loads))
        begun = self._in_order(plan.num_tokens, self._begin, plan, loads)

        def issue_draw(masks: StepMasks) -> Future[HostCopy]:
            return self._in_order(plan.num_tokens, lambda: self._finish(begun.result(), masks))

        return LaunchedStep(plan, None, issue_draw)

    def launch_scoring(self, plan: ScoringPlan) -> LaunchedScoring:
        """Issue a step of scoring after what was issued before."""
        num_tokens, loads = len(plan.token_ids), self._loads(plan)
        return LaunchedScoring(self._in_order(num_tokens, self._issue_scoring, plan, loads))

    def _loads(self, plan: StepPlan | ScoringPlan) -> Loads:
        """The adapters that a step loads, as they are when it is launched."""
        return self.adapters.of_loads(plan.adapter_loads) if self.adapters else ()

    def weights(self, command: AnyWeightCommand) -> WeightReply:
        """Read or change weights, while no step is in flight; see `RankWeights.run`."""
        return self._rank_weights.run(command)

    def read_routes(self, slots: Int64Array) -> RouteArrays:
        """Wait for the experts of tokens, after all steps that were launched; see `Runner`."""
        routes = self._stage.model.routes
        assert routes is not None, "requests for routes are refused where none are kept"

        @torch.inference_mode()
        def issue() -> HostCopy:
            return HostCopy(routes.read(to_device(slots, self._rows.device)))

        arrays = wait_for(self._in_order(len(slots), issue))
        return RouteArrays(*routes.laid_out(arrays["ids"], arrays["weights"]))

    @cached_property
    def _rank_weights(self) -> RankWeights:
        stage, draft = self._stage, NamedWeights()
        if stage.speculation is not None:
            draft = stage.speculation.drafter.named_weights()
        exchange = self._sampling_rows.shard.exchange
        return RankWeights(stage.model.named_weights(), draft, self._rows.device, exchange)

    def step_costs(self) -> StepCosts | None:
        """Measure what drafts cost; None where nothing is drafted or no step is captured."""
        return None if self._graphs is None else self._graphs.step_costs()

    def forget(self, rows: Int32Array) -> None:
        """Vacate rows at once and count none as drawn, as after a measurement."""
        for row in rows.tolist():
            self._sampling_rows.remove(row)
        self._stage.sampler.forget_counts()
        self._rows.forget(rows.tolist())

    def give_back(self, parts: Sequence[MemoryPart], *, keeps_weights: bool) -> None:
        """Give parts of this rank's memory back; see `Runner`."""
        self._memory.give_back(parts, keeps_weights=keeps_weights)

    def take_again(self, parts: Sequence[MemoryPart]) -> None:
        """Take parts of this rank's memory again; see `Runner`."""
        self._memory.take_again(parts)

    @property
    def rows_by_path(self) -> dict[str, int]:
        """Rows drawn so far, by the sampler's path."""
        return dict(self._stage.sampler.rows_by_path)

    @property
    def mask_buffer(self) -> Int32Array:
        """The host's buffer for the masks of the next draw; see `HostMasks`."""
        return self._masks.buffer

    def _in_order(self, num_tokens: int, work: Any, *args: Any) -> Future[Any]:
        """Issue work of so many tokens after what was issued before."""

        def issue() -> Any:
            with self._threads(num_tokens):
                return work(*args)

        return self._launcher(issue)

    def _issue(self, plan: StepPlan, loads: Loads) -> HostCopy:
        return self._finish(self._begin(plan, loads), None)

    @torch.inference_mode()
    def _issue_scoring(self, plan: ScoringPlan, loads: Loads) -> HostCopy:
        if self.adapters is not None:
            self.adapters.load(loads)
        device, shard = self._rows.device, self._sampling_rows.shard
        logits, forward = self._logits, self._forward
        return issue_scoring(plan, logits, forward, device, shard, self._states)

    @torch.inference_mode()
    def _begin(self, plan: StepPlan, loads: Loads) -> _BegunStep:
        self._apply(plan)
        if self.adapters is not None:
            self.adapters.load(loads)
        self._stage.sampler.count(plan.rows[plan.samples], verified=plan.num_drafts > 0)
        if self._graphs is not None and plan.is_decode:
            drawn = self._graphs.replay(plan)
            if drawn is None:
                self._graphs.replay_forward(plan)
            return _BegunStep(plan, None, None, {}, drawn)
        gather = gather_on_host if serves(self._rows) else gather_inputs
        inputs = gather(plan, self._rows, self._sampling_rows)
        hidden = self._forward(
            inputs.input_ids,
            inputs.positions,
            inputs.attention,
            self._step_states(plan, inputs),
            of_tokens(plan.adapters, plan.num_query),
        )
        results: dict[str, torch.Tensor] = {}
        for i, span in enumerate(plan.spans):
            starts, logits = inputs.attention.query_starts_np, self._logits
            state, shard = self._rows, self._sampling_rows.shard
            logprobs = span_logprobs(plan, span, starts, hidden.final, logits, state, shard)
            results |= {f"{i}/{name}": tensor for name, tensor in logprobs._asdict().items()}
        return _BegunStep(plan, inputs, hidden, results, head=self._head_of(plan, inputs))

    @torch.inference_mode()
    def _finish(self, begun: _BegunStep, masks: StepMasks | None) -> HostCopy:
        plan, results = begun.plan, dict(begun.results)
        slots = None if masks is None else self._masks.publish(masks)
        drawn = begun.drawn or self._replay_draw(begun, slots)
        if drawn is None and begun.inputs is not None and begun.hidden is not None:
            tokens = self._stage(begun.inputs.with_masks(slots), begun.hidden, begun.head)
            results |= {} if tokens is None else tokens.named()
        if masks is not None:
            self._masks.release()
        if plan.reports_drafts:
            proposed = plan.rows[plan.proposes].astype(np.int64)
            results["drafts"] = self._rows.drafts[to_device(proposed, self._rows.device)]
        return HostCopy(results, drawn, int(np.count_nonzero(plan.samples)))

    def _replay_draw(self, begun: _BegunStep, slots: torch.Tensor | None) -> Packed | None:
        """Draw by a graph, where there is one for the step."""
        if self._graphs is None:
            return None
        if begun.inputs is None or begun.hidden is None:
            return self._graphs.replay_draw(begun.plan, slots)
        if serves(self._rows):
            return self._graphs.replay_draw_of(begun.plan, begun.inputs, begun.hidden, slots)
        return None

    def _head_of(self, plan: StepPlan, inputs: StepInputs) -> TokenGroups | None:
        """The adapters of the rows that go through the LM head."""
        if self.adapters is None or inputs.sampling is None:
            return None
        return self.adapters.of_head(plan, inputs.sampling.rows_np, self._rows.device)

    def _step_states(self, plan: StepPlan, inputs: StepInputs) -> StepStates | None:
        if self._states is None:
            return None
        attention, num_decodes = inputs.attention, int(np.count_nonzero(plan.decodes))
        starts, starts_np = attention.query_starts, attention.query_starts_np
        return step_states(
            self._states, inputs.rows, inputs.positions, starts, starts_np, num_decodes
        )

    def _apply(self, plan: StepPlan) -> None:
        for row in plan.released:
            self._sampling_rows.remove(row)
        for admission in plan.admissions:
            choice = admission.choice
            self._sampling_rows.add(
                admission.row,
                choice.request.params,
                seed=choice.seed,
                choice=choice.index,
                prompt_len=choice.prompt_len,
                num_tokens=len(choice.token_ids),
            )
        writes = self._rows.take(plan)
        if self._states is not None:
            writes += self._states.take(plan)
        try:
            self._sampling_rows.flush(before=writes)
        except torch.OutOfMemoryError as error:  # later plans take rows for what they are not there
            raise RunnerLostError(f"rows could not be published: {first_line(error)}") from error


@dataclass(frozen=True)
class _BegunStep:
    """A step whose forward was issued.

    Attributes:
        inputs, hidden: None where a graph holds them.
        results: what the step has to report so far, by name.
        drawn: what its rows drew, where one graph did everything.
        head: the adapters of the rows that go through the LM head; None for none.
    """

    plan: StepPlan
    inputs: StepInputs | None
    hidden: Hidden | None
    results: dict[str, torch.Tensor]
    drawn: Packed | None = None
    head: TokenGroups | None = None
