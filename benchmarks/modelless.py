"""A server whose engine draws random tokens without a model: the host's part of a token, alone.

    python -m benchmarks.modelless MODEL --port 8000      # any flag of `tailrace serve`

Its steps take as long as those of Qwen3-0.6B on an H200, so that what `bench_serving --base-url`
measures against it is what scheduler, messages and HTTP can carry, on a machine without a GPU.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine import build, client, process
from engine.config import EngineConfig, EngineInfo
from engine.engine import Engine
from engine.models.folder import model_folder, read_json
from engine.plan import StepPlan, StepResult
from engine.request import LogprobArrays
from server import cli

DECODE_S, MIXED_S = 2.9e-3, 7e-3
NUM_BLOCKS, NUM_TOP = 40_000, 5


@dataclass
class _Step:
    plan: StepPlan
    ends_at: float

    def wait(self, timeout_s: float | None = None) -> StepResult:
        time.sleep(max(self.ends_at - time.perf_counter(), 0.0))
        count = int(self.plan.samples.sum())
        ids = np.random.randint(1000, 100_000, count, dtype=np.int32)
        reported = any(choice.request.params.logprobs for choice in self.plan.choices)
        return StepResult(ids, np.zeros(count, np.bool_), _logprobs(ids) if reported else None, [])


class _Runner:
    """Steps end one after the other, like those of a stream."""

    def __init__(self) -> None:
        self.rows_by_path: dict[str, int] = {}
        self._ends_at = 0.0

    def launch(self, plan: StepPlan) -> _Step:
        seconds = DECODE_S if plan.is_decode else MIXED_S
        self._ends_at = max(self._ends_at, time.perf_counter()) + seconds
        return _Step(plan, self._ends_at)


def _logprobs(ids: np.ndarray[Any, Any]) -> LogprobArrays:
    tops = np.random.randint(1000, 100_000, (len(ids), NUM_TOP), dtype=np.int32)
    values = -np.random.rand(len(ids), NUM_TOP).astype(np.float32)
    return LogprobArrays(
        chosen=values[:, 0],
        ranks=np.ones(len(ids), dtype=np.int32),
        top_ids=tops,
        top_logprobs=values,
        explicit=np.zeros((len(ids), 0), dtype=np.float32),
    )


def _engine(config: EngineConfig) -> Engine:
    fields = read_json(model_folder(config.model.model) / "config.json")
    info = EngineInfo(
        vocab_size=fields["vocab_size"],
        max_model_len=fields["max_position_embeddings"],
        eos_token_ids=(),
        max_rows=config.scheduler.max_rows,
        num_blocks=NUM_BLOCKS,
        block_size=config.cache.block_size,
        dtype="none",
        device="none",
    )
    return Engine(config, info, _Runner())


def main() -> int:
    """The server, or where the server starts it as such, its engine process."""
    if sys.argv[1] == "--engine":
        sys.argv.pop(1)
        build.build_engine = _engine
        return process.main()
    client.COMMAND = (sys.executable, "-m", "benchmarks.modelless", "--engine")
    return cli.main(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    process._exit(main())
