"""Steps that were launched: waiting for what they computed, and for what went wrong."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from engine.arrays import LogprobArrays
from engine.contracts.runner import RunnerLostError, StepResult
from engine.contracts.scoring import ScoringResult
from engine.messages.step_output import Finish
from engine.plan import StepMasks, StepPlan
from engine.runner.host_copy import Arrays, HostCopy
from engine.runner.host_stream import is_device_lost
from sampling.batch import NOTHING_ALLOWED, UNUSABLE_LOGITS

_NO_TOKENS = np.zeros(0, dtype=np.int32)

_FINISHES = np.zeros(3, dtype=np.uint8)
"""What a code of `SamplerOutput.bad` means for the row's choice."""
_FINISHES[[UNUSABLE_LOGITS, NOTHING_ALLOWED]] = Finish.NAN, Finish.EMPTY


def wait_for(issued: Future[HostCopy]) -> Arrays:
    """Wait for a launched step and for the copy of its results to the host.

    Raises:
        RunnerLostError: the device failed in a way that no later step can survive.
        Exception: what the step raised.
    """
    try:
        return issued.result().arrays()
    except Exception as error:
        if is_device_lost(error):
            raise RunnerLostError(str(error)) from error
        raise


def check(issued: Future[HostCopy]) -> None:
    """Raise what issuing a step raised; on a CPU, where a step is issued to its end, wait for it.

    Ranks of one engine must know at once: the others wait for this one inside the step.
    """
    issued.result()


class LaunchedStep:
    """A step that was launched; see `StepHandle`.

    Args:
        issued: the step's results; None where its draw is issued apart.
        issue_draw: issues that draw.
    """

    def __init__(
        self,
        plan: StepPlan,
        issued: Future[HostCopy] | None,
        issue_draw: Callable[[StepMasks], Future[HostCopy]] | None = None,
    ) -> None:
        self.plan = plan
        self._issued = issued
        self._issue_draw = issue_draw

    def draw(self, masks: StepMasks) -> None:
        assert self._issue_draw is not None, "the step awaits no masks"
        self._issued, self._issue_draw = self._issue_draw(masks), None

    def check(self) -> None:
        """Raise what issuing the step raised; see `check`."""
        assert self._issued is not None, "the step's draw was never issued"
        check(self._issued)

    def wait(self) -> StepResult:
        assert self._issued is not None, "the step's draw was never issued"
        arrays = wait_for(self._issued)
        failed = _FINISHES[arrays.get("bad", _NO_TOKENS)]
        return StepResult(
            token_ids=arrays.get("token_ids", _NO_TOKENS[:, None]),
            num_new=arrays.get("num_new", (failed == Finish.RUNNING).astype(np.int32)),
            failed=failed,
            num_offered=arrays.get("num_offered"),
            num_accepted=arrays.get("num_accepted"),
            logprobs=_logprob_arrays(arrays, "") if "chosen" in arrays else None,
            prompt_logprobs=[_logprob_arrays(arrays, f"{i}/") for i in range(len(self.plan.spans))],
            drafts=arrays.get("drafts"),
        )


class LaunchedScoring:
    """A step of scoring that was launched; see `ScoringHandle`."""

    def __init__(self, issued: Future[HostCopy]) -> None:
        self._issued = issued

    def check(self) -> None:
        """Raise what issuing the step raised; see `check`."""
        check(self._issued)

    @property
    def is_there(self) -> bool:
        if not self._issued.done():  # a CPU's step, which is computed when it is waited for
            return True
        return self._issued.exception() is not None or self._issued.result().is_there

    def wait(self) -> ScoringResult:
        arrays = wait_for(self._issued)
        return ScoringResult(**arrays)


def _logprob_arrays(arrays: Arrays, prefix: str) -> LogprobArrays:
    names = LogprobArrays.__struct_fields__
    return LogprobArrays(**{name: arrays[prefix + name] for name in names})
