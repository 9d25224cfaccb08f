"""Steps of either kind tell a lost device from an error of their own."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest
import torch

from engine.buffers import HostCopy
from engine.plan import RunnerLostError, StepPlan
from engine.runner.launched import LaunchedScoring, LaunchedStep

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
    assert len(result.token_ids) == len(result.bad) == len(result.prompt_logprobs) == 0
    assert result.logprobs is None


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_takes_longer_is_not_a_lost_device(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def synchronize() -> None:
        raise AssertionError("would wait for the step that hangs")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    issued: Future[HostCopy] = Future()
    step = LaunchedStep(NOTHING, issued) if kind == "choices" else LaunchedScoring(issued)
    with pytest.raises(TimeoutError):
        step.wait(0.0)
