"""Measures how much of a GPU's memory real steps leave to the KV cache.

The largest steps a scheduler could plan are run through the engine's own runner over a small
cache: a full token budget with every row drawing under the dearest sampling parameters, the
logprobs of a whole prompt, and what the graphs will hold for themselves: a decode step, and the
forward of the largest step that is captured. Before, the same steps compile what a server must not
compile inside a request. `engine.startup.build` makes blocks of what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from msgspec import structs

from engine.arrays import Int32Array
from engine.config import ConfigError
from engine.contracts.scoring import ScoringPlan
from engine.kernels.skinny import NUM_ROWS
from engine.memory.pages import KVCache
from engine.messages.request import Grammar, PromptLogprobsParams, Request
from engine.plan import StepMasks, StepPlan
from engine.rows import Choice
from engine.runner.model_runner import ModelRunner
from engine.scoring.packing import Rows, make_plan, no_snapshots
from engine.speculative_config import draft_counts
from sampling.device.compiling import compiling_together
from sampling.params import MAX_LOGPROB_TOKEN_IDS, SamplingParams

GRAPH_BYTES = 256 << 20
"""Memory the driver keeps for captured graphs besides their tensors."""
DEAREST = SamplingParams(
    temperature=1.0,
    top_k=50,
    top_p=0.9,
    min_p=0.01,
    presence_penalty=0.5,
    logprobs=20,
    logprob_token_ids=(0,) * MAX_LOGPROB_TOKEN_IDS,
    logprobs_mode="processed_logprobs",
    kept_logprob=True,
)
Plan = StepPlan | ScoringPlan


@dataclass(frozen=True)
class Limits:
    """The largest steps a scheduler may plan.

    Attributes:
        max_rows, max_step_tokens: of a step. max_model_len: tokens of a row.
        num_drafts: k, 0 without a drafter.
        captured_tokens: of the largest step whose forward is captured in pieces, 0 for none.
        has_grammars: whether rows may draw under grammars.
        num_adapters: slots of adapters that rows may have, 0 for none.
    """

    max_rows: int
    max_step_tokens: int
    max_model_len: int
    block_size: int
    num_drafts: int = 0
    captured_tokens: int = 0
    has_grammars: bool = False
    num_adapters: int = 0

    @property
    def dearest(self) -> SamplingParams:
        """The parameters whose draws need the most memory."""
        return structs.replace(DEAREST, constrained=self.has_grammars)

    @property
    def draft_counts(self) -> tuple[int, ...]:
        """The numbers of drafts that captured steps bring, 0 among them."""
        return (0, *draft_counts(self.num_drafts))

    @property
    def max_verified_rows(self) -> int:
        """Rows whose drafts are verified in one step."""
        return min(self.max_rows, self.max_step_tokens // (1 + self.num_drafts))

    @property
    def tokens_each(self) -> int:
        """Tokens a row brings when all rows share a step's budget."""
        return min(max(self.max_step_tokens // self.max_rows, 1), self.max_model_len)

    @property
    def tokens_alone(self) -> int:
        """Tokens one row brings when it has the budget for itself."""
        return min(self.max_step_tokens, self.max_model_len)

    @property
    def num_blocks(self) -> int:
        """Blocks the measured steps need, the null block included."""
        each = -(-(max(self.tokens_each, self.num_drafts) + 1) // self.block_size)
        alone = -(-self.tokens_alone // self.block_size)
        return max(self.max_rows * each, alone) + 1


@dataclass(frozen=True)
class MemoryProfile:
    """The uses of a GPU's memory, in bytes.

    Attributes:
        total: memory of the device. foreign: held by other processes and the CUDA context.
        fixed: weights and buffers. step: peak of a step above them. graphs: held by graphs.
    """

    total: int
    foreign: int
    fixed: int
    step: int
    graphs: int

    def __str__(self) -> str:
        return (
            f"weights and buffers take {_gib(self.fixed)}, a step up to {_gib(self.step)}, "
            f"graphs {_gib(self.graphs)}, other processes and the driver {_gib(self.foreign)}"
        )

    def cache_bytes(self, utilization: float) -> int:
        """The bytes that are left for the cache.

        Raises:
            ConfigError: there are none.
        """
        allowed = int(self.total * utilization)
        left = allowed - self.foreign - self.fixed - self.step - self.graphs
        if left > 0:
            return left
        raise ConfigError(
            f"no memory is left for the KV cache: --gpu-memory-utilization {utilization:g} of "
            f"{_gib(self.total)} allows {_gib(allowed)}; {self}"
        )


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def measure(runner: ModelRunner, cache: KVCache, limits: Limits) -> MemoryProfile:
    """Run the largest steps and measure them; the runner's rows are vacant afterwards.

    Args:
        runner: over a cache of `limits.num_blocks`, which does not count as fixed.
    """
    device = cache.device
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    large = [_full_step(limits), _prompt_logprobs_step(limits)]
    small = [_small_step(limits, n) for n in NUM_ROWS]
    if limits.num_adapters:  # what is fused with products without them is not with them
        small += [_small_step(replace(limits, num_adapters=0), n) for n in NUM_ROWS]
    decoding = [*_decode_steps(limits, SamplingParams()), *_decode_steps(limits, limits.dearest)]
    forwards = [_forward_step(limits)] if limits.captured_tokens else []
    with compiling_together():
        _run(runner, [*large, *small, *decoding, *forwards])
    step = _peak(runner, device, large + small)
    graphs = _peak(runner, device, decoding) + _peak(runner, device, forwards)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return MemoryProfile(
        total=total,
        foreign=total - free - torch.cuda.memory_reserved(device),
        fixed=before - sum(layer.nbytes for layer in cache.layers),
        step=step,
        graphs=graphs + GRAPH_BYTES * len(limits.draft_counts) * (1 + bool(limits.num_adapters)),
    )


def _peak(runner: ModelRunner, device: torch.device, plans: Sequence[Plan]) -> int:
    """The bytes the allocator takes from the device for steps, gaps between tensors included."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    _run(runner, plans)
    return torch.cuda.max_memory_reserved(device) - before


def _run(runner: ModelRunner, plans: Sequence[Plan]) -> None:
    for plan in plans:
        if isinstance(plan, ScoringPlan):
            runner.launch_scoring(plan).wait()
        else:
            step = runner.launch(plan)
            if plan.awaits_masks:
                step.draw(StepMasks.none(plan))
            step.wait()
            runner.forget(plan.rows)


def _full_step(limits: Limits) -> StepPlan:
    """A step in which every row brings its share of the budget and draws."""
    request = Request(
        handle=0,
        prompt_token_ids=np.zeros(limits.tokens_each, dtype=np.int32),
        params=limits.dearest,
        max_tokens=1,
        grammar=_grammar_of(limits.dearest),
    )
    return _plan(limits, request, limits.max_rows, limits.tokens_each)


def _prompt_logprobs_step(limits: Limits) -> StepPlan:
    """A step of one row with the whole budget, all its prompt tokens' logprobs reported."""
    wanted = PromptLogprobsParams(num_top=20, token_ids=DEAREST.logprob_token_ids or ())
    request = Request(
        handle=0,
        prompt_token_ids=np.zeros(limits.tokens_alone, dtype=np.int32),
        params=DEAREST,
        max_tokens=1,
        prompt_logprobs=wanted,
    )
    return _plan(limits, request, 1, limits.tokens_alone)


def _small_step(limits: Limits, num_tokens: int) -> StepPlan:
    """A step of one row with a few tokens, whose products are kernels of their own."""
    count = min(num_tokens, limits.tokens_alone)
    request = Request(
        handle=0,
        prompt_token_ids=np.zeros(count, dtype=np.int32),
        params=SamplingParams(),
        max_tokens=1,
    )
    return _plan(limits, request, 1, count)


def _forward_step(limits: Limits) -> ScoringPlan:
    """A step that is hardly more than a forward: all rows in the same blocks, one position read."""
    each = min(limits.captured_tokens, limits.tokens_alone)
    num_rows = -(-limits.captured_tokens // each)
    blocks = np.arange(1, -(-each // limits.block_size) + 1, dtype=np.int32)
    num_read = np.zeros(num_rows, dtype=np.int64)
    num_read[-1] = 1
    rows = Rows(
        token_ids=np.zeros(num_rows * each, dtype=np.int32),
        counts=np.full(num_rows, each),
        starts=np.zeros(num_rows, dtype=np.int64),
        tables=np.tile(blocks, (num_rows, 1)),
        num_read=num_read,
        id_lists=np.zeros((1, 1), dtype=np.int32),
        sources=no_snapshots(num_rows),
        targets=no_snapshots(num_rows),
    )
    plan = make_plan([rows], limits.block_size)
    return replace(plan, adapters=_adapters_of(limits, num_rows))


def _decode_steps(limits: Limits, params: SamplingParams) -> list[StepPlan]:
    """Steps in which every row draws after one token, and after its drafts if it has any."""
    request = Request(
        handle=0,
        prompt_token_ids=np.zeros(1, dtype=np.int32),
        params=params,
        max_tokens=1,
        grammar=_grammar_of(params),
    )
    plain = _plan(limits, request, limits.max_rows, 1)
    if not limits.num_drafts:
        return [plain]
    num_rows, num_query = limits.max_verified_rows, 1 + limits.num_drafts
    return [plain, _plan(limits, request, num_rows, num_query, num_drafts=limits.num_drafts)]


def _grammar_of(params: SamplingParams) -> Grammar | None:
    """A grammar for rows that are to be drawn under one; nothing compiles it."""
    return Grammar(source="") if params.constrained else None


def _adapters_of(limits: Limits, num_rows: int) -> Int32Array | None:
    """The slots of rows that take all adapters in turn."""
    if not limits.num_adapters:
        return None
    return np.arange(num_rows, dtype=np.int32) % limits.num_adapters


def _plan(
    limits: Limits, request: Request, num_rows: int, num_tokens: int, num_drafts: int = 0
) -> StepPlan:
    """A step that admits `num_rows` rows of `request` and computes `num_tokens` of each."""
    per_row = -(-num_tokens // limits.block_size)
    blocks = np.arange(1, num_rows * per_row + 1).reshape(num_rows, per_row)
    choices = [
        Choice(
            frontend=b"",
            request=request,
            index=0,
            seed=row,
            arrival=row,
            token_ids=request.prompt_token_ids,
            prompt_parts=None if request.prompt_logprobs is None else [],
        )
        for row in range(num_rows)
    ]
    return StepPlan.of_new_rows(
        choices,
        num_tokens,
        limits.max_model_len,
        blocks,
        num_drafts=num_drafts,
        adapters=_adapters_of(limits, num_rows),
        num_proposed=limits.num_drafts,
    )
