"""Steps that are settled, for tests."""

from __future__ import annotations

import numpy as np

from engine.contracts.runner import StepResult
from engine.messages.step_output import Finish


def result_of(token_ids: list[list[int]], failed: list[Finish] | None = None) -> StepResult:
    """Rows of tokens drawn, padded with 77, which nobody drew."""
    width = max([1, *map(len, token_ids)])
    padded = [row + [77] * (width - len(row)) for row in token_ids]
    return StepResult(
        token_ids=np.array(padded, dtype=np.int32).reshape(-1, width),
        num_new=np.array([len(row) for row in token_ids], dtype=np.int32),
        failed=np.array(failed or [Finish.RUNNING] * len(token_ids), dtype=np.uint8),
        num_offered=None,
        num_accepted=None,
        logprobs=None,
        prompt_logprobs=[],
    )
