"""The engine process with a fault in the step that admits a prompt beginning with FAULT.

Started as `python -m tests.engine.faulty KIND ADDRESS`, otherwise as `engine.process`. On the GPU
the faults are real: a kernel that does not end, an index out of bounds that kills the context.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

from engine import process
from engine.plan import StepPlan
from engine.runner.model_runner import ModelRunner

FAULT = 4242
ON_GPU = torch.cuda.is_available()


def hang() -> None:
    if ON_GPU:
        torch.cuda._sleep(1 << 50)  # type: ignore[no-untyped-call]
    else:
        time.sleep(1e6)


def run_out_of_memory() -> None:
    torch.empty(1 << 60, dtype=torch.uint8, device="cuda" if ON_GPU else "cpu")


def lose_the_device() -> None:
    if ON_GPU:
        torch.zeros(4, device="cuda")[torch.tensor([1 << 20], device="cuda")]
    else:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")


FAULTS = {"hang": hang, "memory": run_out_of_memory, "device": lose_the_device}


def main() -> int:
    kind = sys.argv.pop(1)
    apply: Any = ModelRunner._apply

    def apply_faulty(runner: ModelRunner, plan: StepPlan) -> None:
        apply(runner, plan)
        if kind in FAULTS and any(a.choice.token_ids[0] == FAULT for a in plan.admissions):
            FAULTS[kind]()

    ModelRunner._apply = apply_faulty  # type: ignore[method-assign,assignment]
    return process.main()


if __name__ == "__main__":
    process._exit(main())
