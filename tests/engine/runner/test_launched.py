"""Steps of either kind tell a lost device from an error of their own."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from engine.contracts.runner import RunnerLostError
from engine.messages.step_output import Finish
from engine.plan import StepMasks, StepPlan
from engine.runner.host_copy import HostCopy
from engine.runner.launched import LaunchedScoring, LaunchedStep
from sampling.batch import NOTHING_ALLOWED, UNUSABLE_LOGITS

NOTHING = StepPlan.of_new_rows([], 0, 0, np.zeros((0, 0), dtype=np.int64))
KINDS = ["choices", "scoring"]


def launched(kind: str, outcome: HostCopy | Exception) -> LaunchedStep | LaunchedScoring:
    issued: Future[HostCopy] = Future()
    if isinstance(outcome, Exception):
        issued.set_exception(outcome)
    else:
        issued.set_result(outcome)
    return LaunchedStep(NOTHING, issued) if kind == "choices" else LaunchedScoring(issued)


def test_a_step_that_drew_nothing_has_empty_results() -> None:
    step = launched("choices", HostCopy({}))
    assert isinstance(step, LaunchedStep)
    result = step.wait()
    assert len(result.token_ids) == len(result.failed) == len(result.prompt_logprobs) == 0
    assert result.logprobs is None


def test_why_a_row_could_not_draw_is_told() -> None:
    bad = torch.tensor([0, UNUSABLE_LOGITS, NOTHING_ALLOWED], dtype=torch.uint8)
    tokens = torch.tensor([[5], [0], [0]], dtype=torch.int32)
    step = launched("choices", HostCopy({"token_ids": tokens, "bad": bad}))
    assert isinstance(step, LaunchedStep)
    result = step.wait()
    assert result.failed.tolist() == [Finish.RUNNING, Finish.NAN, Finish.EMPTY]
    assert result.num_new.tolist() == [1, 0, 0]


def test_a_step_that_awaits_masks_is_waited_for_by_its_draw() -> None:
    issued: Future[HostCopy] = Future()
    issued.set_result(HostCopy({}))
    seen: list[StepMasks] = []

    def issue_draw(masks: StepMasks) -> Future[HostCopy]:
        seen.append(masks)
        return issued

    step = LaunchedStep(NOTHING, None, issue_draw)
    with pytest.raises(AssertionError, match="never issued"):
        step.wait()
    step.draw(masks := StepMasks.none(NOTHING))
    assert seen == [masks]
    assert len(step.wait().token_ids) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_cuda_error_is_the_end_of_the_runner(kind: str) -> None:
    with pytest.raises(RunnerLostError, match="illegal memory access"):
        launched(kind, torch.AcceleratorError("CUDA error: an illegal memory access")).wait()


@pytest.mark.parametrize("kind", KINDS)
def test_a_library_may_be_the_first_to_report_a_lost_device(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def synchronize() -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with pytest.raises(RunnerLostError, match="Triton Error"):
        launched(kind, RuntimeError("Triton Error [CUDA]: device-side assert triggered")).wait()


@pytest.mark.parametrize("kind", KINDS)
def test_other_errors_are_the_steps_own(kind: str) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        launched(kind, torch.OutOfMemoryError("out of memory")).wait()


def test_a_step_is_there_once_its_copy_is_and_where_it_is_computed_when_waited_for() -> None:
    copy, issued = HostCopy({}), Future[HostCopy]()
    step = LaunchedScoring(issued)
    assert step.is_there, "on a CPU it is computed when it is waited for"
    issued.set_result(copy)
    assert step.is_there
    late = HostCopy({})
    late._arriving.append((cast(Any, SimpleNamespace(is_there=False)), 1))
    unfinished = launched("scoring", late)
    assert isinstance(unfinished, LaunchedScoring)
    assert not unfinished.is_there
    failed = launched("scoring", ValueError("no"))
    assert isinstance(failed, LaunchedScoring)
    assert failed.is_there, "and raises what the step did"
