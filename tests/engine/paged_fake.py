"""A runner without a model: it keeps tokens in pages and draws from what the pages say.

The "key" of a position is a hash of all tokens up to it, so a row that reads a wrong, stale or
unwritten block draws a token the reference would not draw.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np

from engine.arrays import Int32Array, Int64Array, LogprobArrays
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.contracts.control import MemoryPart
from engine.contracts.info import EngineInfo
from engine.contracts.runner import RouteArrays, StepResult
from engine.contracts.scoring import ScoringHandle, ScoringPlan
from engine.contracts.weights import (
    AnyWeightCommand,
    FinishUpdate,
    UpdateReport,
    WeightReply,
)
from engine.engine import Engine
from engine.errors import ControlError
from engine.messages.step_output import Finish, Origin
from engine.plan import PromptSpan, StepMasks, StepPlan
from engine.planning.drafting import NO_DRAFTS, DraftRules
from engine.structured.grammars import Grammars

VOCAB = 50


def context_hash(token_ids: Int32Array) -> int:
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
class _RowResult:
    tokens: list[int] = field(default_factory=list)
    failed: Finish = Finish.RUNNING
    num_offered: int = 0
    num_accepted: int = 0


@dataclass
class _Handle:
    plan: StepPlan
    result: StepResult | Exception
    masks: StepMasks | None = None

    def draw(self, masks: StepMasks) -> None:
        assert self.plan.awaits_masks
        assert self.masks is None
        self.masks = masks

    def wait(self) -> StepResult:
        assert self.masks is not None or not self.plan.awaits_masks, "a draw was never issued"
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class PagedFake:
    """Stands in for `ModelRunner`; everything happens at launch, in launch order."""

    def __init__(
        self, max_rows: int, max_len: int, num_blocks: int, block_size: int, num_drafts: int = 0
    ) -> None:
        self.block_size = block_size
        self.weight_commands: list[AnyWeightCommand] = []
        self.refusal: ControlError | None = None
        self.num_written, self.num_lacking = 3, 0
        self.has_draft = False
        self.asleep: set[MemoryPart] = set()
        self.given_back: list[tuple[tuple[MemoryPart, ...], bool]] = []
        self.max_len = max_len
        width = max_len + 2 * num_drafts + 2
        self.tokens = np.full((max_rows, width), -1, dtype=np.int32)
        self.num_computed = np.zeros(max_rows, dtype=np.int64)
        self.tables = np.zeros((max_rows, -(-width // block_size)), dtype=np.int64)
        self.keys = np.full(num_blocks * block_size, -1, dtype=np.int64)
        self.links: set[tuple[int, int]] = set()  # keys of neighbouring positions
        self.choice_of = np.zeros(max_rows, dtype=np.int64)
        self.limits = np.zeros(max_rows, dtype=np.int64)
        self.drafts = np.full((max_rows, num_drafts), -1, dtype=np.int32)
        self.rows_by_path: dict[str, int] = {}
        self.num_query_log: list[list[int]] = []
        self.proposed: list[int] = []
        self.origins: dict[tuple[int, int, int], Origin] = {}  # by handle, choice and position
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
            self.tables[admission.row] = 0
            self.limits[admission.row] = admission.limit
            self.drafts[admission.row] = -1
            self.choice_of[admission.row] = admission.choice.index
        for grant in plan.grants:
            self.tables[grant.row, grant.start : grant.start + len(grant.blocks)] = grant.blocks
        if self.fail_next:
            self.fail_next = False
            return _Handle(plan, self.failure)
        self.drafts[plan.undrafted] = -1
        drawn = [self._run(plan, i) for i in range(len(plan.rows))]
        drawn = [each for each, samples in zip(drawn, plan.samples, strict=True) if samples]
        prompt_logprobs = [self._logprobs_of(plan, span) for span in plan.spans]
        for row in plan.rows[plan.proposes].tolist():
            self._propose(row, plan.num_proposed)
        token_ids = np.zeros((len(drawn), 1 + plan.num_drafts), dtype=np.int32)
        for i, each in enumerate(drawn):
            token_ids[i, : len(each.tokens)] = each.tokens
        result = StepResult(
            token_ids=token_ids,
            num_new=np.array([len(each.tokens) for each in drawn], dtype=np.int32),
            failed=np.array([each.failed for each in drawn], dtype=np.uint8),
            num_offered=np.array([each.num_offered for each in drawn], dtype=np.int32),
            num_accepted=np.array([each.num_accepted for each in drawn], dtype=np.int32),
            logprobs=None,
            prompt_logprobs=prompt_logprobs,
        )
        return _Handle(plan, result)

    def weights(self, command: AnyWeightCommand) -> WeightReply:
        """Follows a command about weights, of which it has none."""
        self.weight_commands.append(command)
        if self.refusal is not None:
            raise self.refusal
        if not isinstance(command, FinishUpdate):
            return None
        return UpdateReport(
            num_tensors=1,
            num_weights=self.num_written,
            num_lacking=self.num_lacking,
            num_bytes=1,
            seconds=0.0,
            has_draft=self.has_draft,
        )

    def read_routes(self, slots: Int64Array) -> RouteArrays:
        """Experts that are the slots themselves, of two layers."""
        ids = np.stack([slots, slots + 1], axis=1)[:, :, None].astype(np.int16)
        return RouteArrays(ids, ids.astype(np.float32))

    def give_back(self, parts: Sequence[MemoryPart], *, keeps_weights: bool) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.asleep |= set(parts)
        self.given_back.append((tuple(parts), keeps_weights))
        if "kv_cache" in parts:
            self.keys[:] = -1  # what is found there afterwards is no key

    def take_again(self, parts: Sequence[MemoryPart]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.asleep -= set(parts)

    def launch_scoring(self, plan: ScoringPlan) -> ScoringHandle:
        raise NotImplementedError  # `ScoringFake` does

    def _run(self, plan: StepPlan, i: int) -> _RowResult:
        """Compute one row's query tokens and verify its drafts."""
        row, count = int(plan.rows[i]), int(plan.num_query[i])
        start, each = int(self.num_computed[row]), _RowResult()
        drafts = self.drafts[row, : plan.num_drafts if plan.decodes[i] else 0]
        self.tokens[row, start + 1 : start + 1 + len(drafts)] = np.maximum(drafts, 0)
        self._compute(row, count)
        if not plan.samples[i]:
            return each
        first = start + count - len(drafts)  # position of the first token drawn
        room = int(self.limits[row]) - first
        if room <= 0:  # the choice ended in the step before, which nobody has read back
            return each
        each.num_offered = int((drafts[:room] >= 0).sum())
        for depth in range(min(1 + len(drafts), room)):
            context = context_hash(self.tokens[row, : first + depth])
            if context in self.bad_contexts:
                each.failed = Finish.NAN
                break
            each.tokens.append(draw(context, int(self.choice_of[row])))
            choice, is_draft = plan.choices[i], depth < len(drafts) and drafts[depth] >= 0
            is_accepted = is_draft and drafts[depth] == each.tokens[-1]
            own = Origin.ACCEPTED if is_accepted else Origin.RECOVERED
            plain = Origin.BONUS if depth else Origin.DRAWN
            key = (choice.request.handle, choice.index, first + depth)
            self.origins[key] = own if is_draft else plain
            if not is_accepted:
                break
            each.num_accepted += 1
        entered = [*each.tokens, 0] if each.failed else each.tokens
        self.tokens[row, first : first + len(entered)] = entered
        self.num_computed[row] = first + max(len(each.tokens), 1) - 1
        return each

    def _propose(self, row: int, count: int) -> None:
        """Make drafts that are right about two times of three."""
        self.drafts[row] = -1
        end = int(self.num_computed[row]) + 1
        tokens = self.tokens[row, :end].copy()
        for depth in range(count):
            context = context_hash(tokens)
            wrong = context % 3 == 0
            token = (draw(context, int(self.choice_of[row])) + wrong) % VOCAB
            if context % 11 == 0:
                break
            self.drafts[row, depth] = token
            tokens = np.append(tokens, token)
        self.proposed.append(row)

    def _slot(self, row: int, position: int) -> int:
        block = self.tables[row, position // self.block_size]
        is_needed = position < self.limits[row] - 1
        assert block != 0 or not is_needed, "a row computes into the null block"
        return int(block * self.block_size + position % self.block_size)

    def _compute(self, row: int, count: int) -> None:
        start = int(self.num_computed[row])
        for position in range(start):  # what attention would read must be this row's own prefix
            want = context_hash(self.tokens[row, : position + 1])
            assert self.keys[self._slot(row, position)] == want, "a stale or foreign block"
        for position in range(start, start + count):
            assert self.tokens[row, position] >= 0, "a token that is not known yet"
            key = context_hash(self.tokens[row, : position + 1])
            self.keys[self._slot(row, position)] = key
            self.links.add((context_hash(self.tokens[row, :position]), key))
        self.num_computed[row] = start + count

    def _logprobs_of(self, plan: StepPlan, span: PromptSpan) -> LogprobArrays:
        """Logprobs whose ranks are the tokens they belong to."""
        row, start = int(plan.rows[span.row_idx]), int(plan.starts[span.row_idx])
        targets = self.tokens[row, start + span.first + 1 : start + span.last + 1]
        arrays = LogprobArrays.zeros(targets.shape, 0, 0)
        arrays.ranks[:] = targets
        return arrays


Fake = TypeVar("Fake", bound=PagedFake)


def make_engine_over(
    fake: type[Fake],
    *,
    max_rows: int = 4,
    max_model_len: int = 64,
    num_blocks: int = 40,
    block_size: int = 4,
    budget: int = 16,
    prefix_caching: bool = True,
    policy: Literal["fcfs", "priority"] = "fcfs",
    drafting: DraftRules = NO_DRAFTS,
    grammars: Grammars | None = None,
) -> tuple[Engine, Fake]:
    """An engine over a runner of the given class, and the runner."""
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
    runner = fake(
        max_rows, max_model_len + 1, num_blocks, block_size, num_drafts=drafting.num_tokens
    )
    return Engine(config, info, runner, drafting, grammars), runner


def make_engine(**fields: Any) -> tuple[Engine, PagedFake]:
    """An engine over a `PagedFake`; `fields` are those of `make_engine_over`."""
    return make_engine_over(PagedFake, **fields)
