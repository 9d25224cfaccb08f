"""The parts of `make bench-gpu`. One is measured in a process of its own:

    python -m benchmarks.parts lora:qwen3-0.6b

prints what its benchmark prints, and each figure as JSON in a line that begins with `FIGURE`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from typing import NamedTuple

import torch

from benchmarks.figures import Figure

MARK = "FIGURE "
SMALL, BIG, LLAMA, EXPERTS = "qwen3-0.6b", "qwen3-8b", "llama-8b", "qwen3-30b-a3b"


class Part(NamedTuple):
    """Figures that are measured together.

    Attributes:
        source: the module of `benchmarks` and its function that yields them.
        arguments: of that function, words.
        seconds: the most that it may take, once Triton's cache has its kernels.
        cards: GPUs that it needs.
    """

    source: str
    arguments: tuple[str, ...] = ()
    seconds: int = 120
    cards: int = 1

    def figures(self) -> Iterator[Figure]:
        """Measure them."""
        module, function = self.source.split(":")
        made: Iterator[Figure] = getattr(importlib.import_module(f"benchmarks.{module}"), function)(
            *self.arguments
        )
        return made


PARTS: dict[str, Part] = {
    # Decisions.
    f"decisions:{SMALL}": Part("bench_decisions:figures", (SMALL,), 120),
    f"decisions:{BIG}": Part("bench_decisions:figures", (BIG,), 120),
    # Models that keep states.
    "hybrids:qwen3.6-27b": Part("bench_hybrids:figures", ("qwen3.6-27b", "fp8"), 200),
    "hybrids:qwen3.6-35b-a3b": Part("bench_hybrids:figures", ("qwen3.6-35b-a3b",), 200),
    "hybrids:nemotron-3-nano": Part("bench_hybrids:figures", ("nemotron-3-nano-30b-a3b",), 150),
    "hybrids:lfm2-8b-a1b": Part("bench_hybrids:figures", ("lfm2-8b-a1b",), 120),
    # Batch invariance.
    f"invariance:{SMALL}": Part("bench_invariance:figures", (SMALL,), 180),
    f"invariance:{BIG}": Part("bench_invariance:figures", (BIG,), 240),
    f"invariance:{EXPERTS}": Part("bench_invariance:figures", (EXPERTS,), 150),
    # Rollouts.
    f"rollouts:{SMALL}": Part("bench_rollouts:figures", (SMALL,), 150),
    f"rollouts:{BIG}": Part("bench_rollouts:figures", (BIG,), 180),
    # Adapters.
    f"lora:{SMALL}": Part("bench_lora:figures", (SMALL,), 120),
    f"lora:{BIG}": Part("bench_lora:figures", (BIG,), 150),
    # Drafts, one stream, streams, grammars, starts.
    "speculation": Part("bench_speculation:figures", (BIG,), 240),
    "drafts": Part("bench_demo:figures", (), 120),
    "single:llama-1b": Part("engine_figures:engine_figures", ("llama-1b",), 60),
    "single:qwen2.5-3b": Part("engine_figures:engine_figures", ("qwen2.5-3b",), 60),
    SMALL: Part("engine_figures:engine_figures", (SMALL,), 150),
    BIG: Part("engine_figures:engine_figures", (BIG,), 150),
    "experts": Part("bench_expert_steps:figures", (), 150),
    f"structured:{SMALL}": Part("bench_structured:figures", (SMALL,), 120),
    f"structured:{BIG}": Part("bench_structured:figures", (BIG,), 120),
    f"starts:{SMALL}": Part("serving_figures:start_figures", (SMALL,), 180),
    f"serving:{SMALL}": Part("serving_figures:serving_figures", (SMALL,), 240),
    f"serving:{BIG}": Part("serving_figures:serving_figures", (BIG,), 150),
    # All else.
    "sampling": Part("sampling_figures:sampling_figures", (), 150),
    "verification": Part("bench_verification:figures", (), 60),
    "logprobs": Part("bench_logprobs:figures", (), 120),
    "quantized": Part("bench_quantized:figures", (BIG,), 150),
    "quantized-serving": Part("quantized_serving:figures", (), 240),
    f"serving:{LLAMA}": Part("serving_figures:serving_figures", (LLAMA,), 120),
    f"scoring:{SMALL}": Part("scoring_figures:scoring_figures", (SMALL,), 120),
    f"scoring:{BIG}": Part("scoring_figures:scoring_figures", (BIG,), 120),
    "parallel": Part("parallel_figures:parallel_figures", (), 400, cards=2),
}


def main(name: str) -> None:
    """Measure a part."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    for each in PARTS[name].figures():
        print(MARK + json.dumps(each | {"gpu": gpu}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
