"""A runner without a model: it keeps tokens in pages and draws from what the pages say.

The "key" of a position is a hash of all tokens up to it, so a row that reads a wrong, stale or
unwritten block draws a token the reference would not draw.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from engine.config import CacheConfig, EngineConfig, EngineInfo, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.plan import StepPlan, StepResult
from engine.request import LogprobArrays

VOCAB = 50


def context_hash(token_ids: np.ndarray) -> int:
    return zlib.crc32(np.asarray(token_ids, dtype=np.int32).tobytes())


def reference(prompt: list[int], max_tokens: int, stop: tuple[int, ...], choice: int) -> list[int]:
    """What a choice must generate, computed without pages."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(draw(context_hash(np.array(tokens)), choice))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


def draw(context: int, choice: int) -> int:
    return (context // 7 + choice * 13) % VOCAB


@dataclass
class _Handle:
    plan: StepPlan
    result: StepResult | Exception

    def wait(self, timeout_s: float | None = None) -> StepResult:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class PagedFake:
    """Stands in for `ModelRunner`; everything happens at launch, in launch order."""

    def __init__(self, max_rows: int, max_len: int, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.tokens = np.full((max_rows, max_len), -1, dtype=np.int32)
        self.num_computed = np.zeros(max_rows, dtype=np.int64)
        self.tables = np.zeros((max_rows, -(-max_len // block_size)), dtype=np.int64)
        self.keys = np.full(num_blocks * block_size, -1, dtype=np.int64)
        self.choice_of = np.zeros(max_rows, dtype=np.int64)
        self.rows_by_path: dict[str, int] = {}
        self.num_query_log: list[list[int]] = []
        self.bad_contexts: set[int] = set()
        self.fail_next = False
        self.failure: Exception = MemoryError("no memory for this step")

    def launch(self, plan: StepPlan) -> _Handle:
        self.num_query_log.append(plan.num_query.tolist())
        for admission in plan.admissions:
            ids = admission.choice.token_ids
            self.tokens[admission.row] = -1
            self.tokens[admission.row, : len(ids)] = ids
            self.num_computed[admission.row] = admission.num_computed
            self.choice_of[admission.row] = admission.choice.index
        for grant in plan.grants:
            self.tables[grant.row, grant.start : grant.start + len(grant.blocks)] = grant.blocks
        if self.fail_next:
            self.fail_next = False
            return _Handle(plan, self.failure)
        drawn, bad = [], []
        for row, count, samples in zip(plan.rows, plan.num_query, plan.samples, strict=True):
            context = self._compute(int(row), int(count))
            if samples:
                bad.append(context in self.bad_contexts)
                drawn.append(draw(context, int(self.choice_of[row])))
                self.tokens[row, self.num_computed[row]] = drawn[-1]
        scores = [self._score(plan, span.row_idx, span.first, span.last) for span in plan.spans]
        result = StepResult(np.array(drawn, np.int32), np.array(bad, np.bool_), None, scores)
        return _Handle(plan, result)

    def _slot(self, row: int, position: int) -> int:
        block = self.tables[row, position // self.block_size]
        assert block != 0, "a row computes into the null block"
        return int(block * self.block_size + position % self.block_size)

    def _compute(self, row: int, count: int) -> int:
        start = int(self.num_computed[row])
        for position in range(start):  # what attention would read must be this row's own prefix
            want = context_hash(self.tokens[row, : position + 1])
            assert self.keys[self._slot(row, position)] == want, "a stale or foreign block"
        for position in range(start, start + count):
            assert self.tokens[row, position] >= 0, "a token that is not known yet"
            self.keys[self._slot(row, position)] = context_hash(self.tokens[row, : position + 1])
        self.num_computed[row] = start + count
        return context_hash(self.tokens[row, : start + count])

    def _score(self, plan: StepPlan, row_idx: int, first: int, last: int) -> LogprobArrays:
        row, start = int(plan.rows[row_idx]), int(plan.starts[row_idx])
        targets = self.tokens[row, start + first + 1 : start + last + 1]
        none = np.zeros((len(targets), 0))
        return LogprobArrays(
            chosen=targets.astype(np.float32),
            ranks=targets.copy(),
            top_ids=none.astype(np.int32),
            top_logprobs=none.astype(np.float32),
            explicit=none.astype(np.float32),
        )


def make_engine(
    *,
    max_rows: int = 4,
    max_model_len: int = 64,
    num_blocks: int = 40,
    block_size: int = 4,
    budget: int = 16,
    prefix_caching: bool = True,
    policy: str = "fcfs",
) -> tuple[Engine, PagedFake]:
    config = EngineConfig(
        model=ModelConfig(model="fake"),
        cache=CacheConfig(block_size=block_size, prefix_caching=prefix_caching),
        scheduler=SchedulerConfig(max_rows=max_rows, max_step_tokens=budget, policy=policy),
    )
    info = EngineInfo(
        vocab_size=VOCAB,
        max_model_len=max_model_len,
        eos_token_ids=(0,),
        max_rows=max_rows,
        num_blocks=num_blocks,
        block_size=block_size,
        dtype="float32",
        device="cpu",
    )
    runner = PagedFake(max_rows, max_model_len + 1, num_blocks, block_size)
    return Engine(config, info, runner), runner
