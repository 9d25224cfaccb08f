"""A decode step as graphs hold it draws what the eager step draws."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.arrays import Int32Array
from engine.batch import StepInputs
from engine.contracts.model import Hidden
from engine.engine import Engine
from engine.plan import StepPlan
from engine.planning import row_snapshots
from engine.runner.graphs.decode_step import DecodeStep, StepRows
from engine.runner.host_copy import Packed
from engine.runner.model_runner import ModelRunner
from engine.speculative_config import RejectionSampleMethod
from sampling import sampler
from sampling.device.triton_support import INTERPRETED
from sampling.params import SamplingParams
from sampling.speculative import drafting, verification
from tests.engine.memory.toy_engine import Rule, mixed, texts, toy_server
from tests.engine.runner import drafting_engines as whole
from tests.engine.runner.table_drafter import draft_from
from tests.engine.tiny_models import VOCAB, write_model


class Uncaptured:
    """Stands in for DecodeGraphs: the same two halves, run as they are, padded alike."""

    def __init__(self, runner: ModelRunner) -> None:
        self._rows, self._sampling_rows = runner._rows, runner._sampling_rows
        self._step_rows = StepRows(self._rows)
        self.num_replays = 0
        stage, attention = runner._stage, runner._forward._attention
        self._steps = {
            num_drafts: DecodeStep(
                stage, attention, self._rows, self._step_rows, num_drafts, runner._states
            )
            for num_drafts in {0, self._rows.drafts.shape[1]}
        }
        self.num_draws = 0

    def replay(self, plan: StepPlan) -> None:
        """No step is one graph."""

    def replay_forward(self, plan: StepPlan) -> None:
        self.num_replays += 1
        self._publish(plan.rows)
        self._hidden = self._steps[plan.num_drafts].forward(self._size)

    def _publish(self, rows: Int32Array) -> None:
        count = len(rows)
        self._step_rows.ids_np[:] = self._rows.scratch_row
        self._step_rows.ids_np[:count] = rows
        self._step_rows.ids.copy_(torch.from_numpy(self._step_rows.ids_np))
        self._size = min(count + 1, self._rows.scratch_row)

    def replay_draw(self, plan: StepPlan, mask_slots: torch.Tensor | None) -> Packed:
        step = self._steps[plan.num_drafts]
        if mask_slots is not None:
            step.put_mask_slots(mask_slots)
        needs = self._sampling_rows.needs(plan.rows)
        return Packed(step.draw(self._size, self._hidden, needs).named(), self._size)

    def replay_draw_of(
        self, plan: StepPlan, inputs: StepInputs, hidden: Hidden, mask_slots: torch.Tensor | None
    ) -> Packed | None:
        if inputs.sampling is None:
            return None
        assert mask_slots is None, "no row is under a grammar here"
        self.num_draws += 1
        self._publish(inputs.sampling.rows_np)
        self._steps[0].gather(self._size)
        drawn = hidden.final[inputs.logit_tokens]
        held = Hidden(torch.cat([drawn, drawn])[: self._size], None)
        needs = inputs.sampling.needs
        return Packed(self._steps[0].draw(self._size, held, needs).named(), self._size)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    write_model("llama", folder)
    return folder


def run(engine: Engine) -> whole.Tokens:
    reporting = SamplingParams(seed=8, logprobs=2)  # of each logit row, so of 1 + k a row
    asked = whole.requests([*whole.EVERYTHING, reporting], max_tokens=12)
    return whole.tokens_of(whole.run(engine, asked, steps_between=0))


def graphs_of(engine: Engine) -> Uncaptured:
    """Let an engine's runner use what stands in for graphs."""
    runner = engine._parts.runner
    assert isinstance(runner, ModelRunner)
    runner._graphs = graphs = Uncaptured(runner)  # type: ignore[assignment]
    return graphs


@pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1")
@pytest.mark.parametrize("method", ["standard", "coupled"])
def test_tokens_are_those_of_the_eager_step(
    folder: Path, method: RejectionSampleMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sampler, verification, drafting):  # only the step's own kernels: minutes less
        monkeypatch.setattr(module, "kernels_run_on", lambda device: False)
    generator = torch.Generator().manual_seed(3)
    draft_from(torch.randn((VOCAB, VOCAB), generator=generator), monkeypatch)
    speculation = whole.config(3, method, draft_sample_method="gumbel")
    eager = whole.make(folder, speculation)
    wanted = run(eager)
    engine = whole.make(folder, speculation)
    graphs = graphs_of(engine)
    assert run(engine) == wanted
    assert graphs.num_replays > 4
    assert engine.stats().drafts == eager.stats().drafts


@pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1")
def test_tokens_behind_prompts_are_those_of_the_eager_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of any shape end in the second half of a decode step."""
    monkeypatch.setattr(sampler, "kernels_run_on", lambda device: False)
    wanted = run(whole.make(folder, None))
    engine = whole.make(folder, None)
    graphs = graphs_of(engine)
    assert run(engine) == wanted
    assert graphs.num_draws > 2
    assert graphs.num_replays > 4


@pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1")
@pytest.mark.parametrize("rule", [None, mixed])
def test_states_are_those_of_one_pass(rule: Rule | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of layers that keep a state a row: the table of states is read and written in the graph."""
    for module in (sampler, verification, drafting):
        monkeypatch.setattr(module, "kernels_run_on", lambda device: False)
    monkeypatch.setattr(row_snapshots, "REPLY_TOKENS", 8)
    server = toy_server(monkeypatch, rule=rule)
    graphs = graphs_of(server.engine)
    for prompt in texts(6, seed=1, longest=20):
        server.submit(prompt, 8)
        server.step()
    server.run()
    assert graphs.num_replays > 4
