"""A server whose engine draws random tokens without a model: the host's part of a token, alone.

    python -m benchmarks.modelless MODEL --port 8000      # any flag of `tailrace serve`

Its steps take as long as those of Qwen3-0.6B on an H200, so that what `bench_serving --base-url`
measures against it is what scheduler, messages and HTTP can carry, on a machine without a GPU.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from engine import parent, process
from engine.arrays import Int64Array, LogprobArrays
from engine.config import EngineConfig
from engine.contracts.control import MemoryPart
from engine.contracts.info import EngineInfo
from engine.contracts.runner import RouteArrays, StepResult
from engine.contracts.scoring import ScoringPlan, ScoringResult
from engine.contracts.weights import AnyWeightCommand
from engine.engine import Engine
from engine.models.weights.folder import model_folder, read_json
from engine.plan import StepMasks, StepPlan
from server import cli

DECODE_S, MIXED_S, TOKEN_S = 2.9e-3, 7e-3, 1.7e-6
NUM_BLOCKS = 40_000


@dataclass
class _Step:
    plan: StepPlan
    ends_at: float

    def draw(self, masks: StepMasks) -> None:
        raise NotImplementedError  # no grammars are served without a model

    def wait(self) -> StepResult:
        time.sleep(max(self.ends_at - time.perf_counter(), 0.0))
        count = int(self.plan.samples.sum())
        ids = np.random.randint(1000, 100_000, (count, 1), dtype=np.int32)
        params = [choice.request.params for choice in self.plan.choices]
        num_top = max((each.logprobs or 0 for each in params), default=0)
        num_explicit = max((len(each.logprob_token_ids or ()) for each in params), default=0)
        return StepResult(
            token_ids=ids,
            num_new=np.ones(count, dtype=np.int32),
            failed=np.zeros(count, dtype=np.uint8),
            num_offered=None,
            num_accepted=None,
            logprobs=_logprobs(count, num_top, num_explicit) if num_top or num_explicit else None,
            prompt_logprobs=[],
        )


@dataclass
class _ScoringStep:
    plan: ScoringPlan
    ends_at: float
    is_there: bool = True  # when it is waited for, asleep: what the engine's process does is timed

    def wait(self) -> ScoringResult:
        time.sleep(max(self.ends_at - time.perf_counter(), 0.0))
        values = -5 - 10 * np.random.rand(*self.plan.id_lists.shape).astype(np.float32)
        others = np.full(len(values), -0.1, dtype=np.float32)
        return ScoringResult(
            values=values,
            others=others,
            best_ids=np.zeros(len(values), dtype=np.int32),
            best=others,
            log_sums=others.astype(np.float64),
            hidden=np.zeros((len(self.plan.embed_tokens), 8), dtype=np.float32),
        )


class _Runner:
    """A runner whose steps end one after the other, like those of a CUDA stream."""

    def __init__(self) -> None:
        self.rows_by_path: dict[str, int] = {}
        self._ends_at = 0.0

    def launch(self, plan: StepPlan) -> _Step:
        return _Step(plan, self._end(int(plan.num_query.sum()), DECODE_S if plan.is_decode else 0))

    def launch_scoring(self, plan: ScoringPlan) -> _ScoringStep:
        return _ScoringStep(plan, self._end(len(plan.token_ids)))

    def weights(self, command: AnyWeightCommand) -> None:
        """There are no weights."""

    def read_routes(self, slots: Int64Array) -> RouteArrays:
        raise AssertionError("there are no experts")

    def give_back(self, parts: Sequence[MemoryPart], *, keeps_weights: bool) -> None:
        """There is no memory."""

    def take_again(self, parts: Sequence[MemoryPart]) -> None:
        """There is no memory."""

    def _end(self, num_tokens: int, seconds: float = 0.0) -> float:
        seconds = seconds or max(MIXED_S, num_tokens * TOKEN_S)
        self._ends_at = max(self._ends_at, time.perf_counter()) + seconds
        return self._ends_at


def _logprobs(count: int, num_top: int, num_explicit: int) -> LogprobArrays:
    """Logprobs like those of random weights: small, and the chosen one hardly ever at the top."""
    values = -5 - 10 * np.random.rand(count, 1 + num_top + num_explicit).astype(np.float32)
    return LogprobArrays(
        chosen=values[:, 0],
        ranks=np.random.randint(1, 100_000, count, dtype=np.int32),
        top_ids=np.random.randint(1000, 100_000, (count, num_top), dtype=np.int32),
        top_logprobs=np.sort(values[:, 1 : 1 + num_top])[:, ::-1],
        explicit=values[:, 1 + num_top :],
        kept=np.zeros(count, dtype=np.float32),
    )


def _engine(config: EngineConfig, *_: object) -> Engine:
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


_PROGRAM = (
    f"import sys; sys.path.append({str(Path(__file__).parents[1])!r}); import runpy; "
    "runpy.run_module('benchmarks.modelless', run_name='__main__', alter_sys=True)"
)
"""The engine process finds no modules where it is started, so it is told where they are."""


def main() -> int:
    """Run the server or, where the server starts this module as such, its engine process."""
    if sys.argv[1] == "--engine":
        sys.argv.pop(1)
        # In the place of the module that imports torch.
        sys.modules["engine.startup.build"] = SimpleNamespace(build_engine=_engine)  # type: ignore[assignment]
        return process.main()
    parent.COMMAND = (sys.executable, "-c", _PROGRAM, "--engine")
    return cli.main(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    process._exit(main())
