from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest
import torch

from engine.buffers import HostCopy
from engine.plan import RunnerLostError, StepPlan
from engine.runner.model_runner import LaunchedStep


def plan() -> StepPlan:
    none = np.zeros(0, dtype=np.int32)
    return StepPlan(
        rows=none,
        num_query=none,
        starts=none,
        samples=none.astype(np.bool_),
        epochs=none.astype(np.int64),
        choices=[],
        num_prompt_tokens=0,
        num_drafts=0,
        decodes=none.astype(np.bool_),
        runs_drafter=False,
        proposes=none.astype(np.bool_),
    )


def launched(outcome: HostCopy | Exception) -> LaunchedStep:
    issued: Future[HostCopy] = Future()
    if isinstance(outcome, Exception):
        issued.set_exception(outcome)
    else:
        issued.set_result(outcome)
    return LaunchedStep(plan(), issued)


def test_a_step_that_drew_nothing_has_empty_results() -> None:
    result = launched(HostCopy({})).wait()
    assert len(result.token_ids) == len(result.bad) == len(result.prompt_logprobs) == 0
    assert result.logprobs is None


def test_a_cuda_error_is_the_end_of_the_runner() -> None:
    with pytest.raises(RunnerLostError, match="illegal memory access"):
        launched(torch.AcceleratorError("CUDA error: an illegal memory access")).wait()


def test_other_errors_are_the_steps_own() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        launched(torch.OutOfMemoryError("out of memory")).wait()
