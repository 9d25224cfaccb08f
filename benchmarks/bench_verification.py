"""Verification of a step's drafts on one GPU, in CUDA graphs, beside one read of the logits.

    python -m benchmarks.bench_verification

Prints a line a case and last a JSON line {"gpu", "copy_gb_per_s", "figures": [...]}, as
`bench_sampling`. The bound is the time one read of the logits takes that must be read: the
target's of every position, and the draft's of every draft where there are any. The check
compares the first rows' tokens with those of verification in plain torch on the CPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.bench_sampling import (
    CHECKED_ROWS,
    DEVICE,
    copy_gb_per_s,
    graph_us,
    print_all,
    timed_figure,
)
from sampling.batch import Drafts, SamplingBatch, Verification
from sampling.params import SamplingParams
from sampling.rows import SamplingRows
from sampling.speculative.verification import Method, verify

COMMAND = "python -m benchmarks.bench_verification"
NUM_ROWS, K, VOCAB = 256, 4, 151936
HISTORY = 64
MUST = 2.5  # times the bound

NEUTRAL = SamplingParams(temperature=0.8, seed=1)
FILTERED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, seed=1)
PENALIZED = SamplingParams(temperature=0.8, presence_penalty=0.5, seed=1)
GREEDY = SamplingParams(temperature=0.0)


class Case(NamedTuple):
    """One measured verification."""

    name: str
    dtype: torch.dtype = torch.bfloat16
    has_draft_logits: bool = False
    params: SamplingParams = NEUTRAL
    method: Method = "standard"
    must: bool = True


CASES = [
    Case("one-hot, bf16"),
    Case("draft logits, bf16", has_draft_logits=True),
    Case("one-hot, float32", torch.float32),
    Case("draft logits, float32", torch.float32, has_draft_logits=True),
    Case("greedy, bf16", params=GREEDY),
    Case("coupled, bf16", method="coupled", must=False),
    Case("one-hot, top-k and top-p, bf16", params=FILTERED, must=False),
    Case("draft logits, penalties, bf16", has_draft_logits=True, params=PENALIZED, must=False),
]


class Step(NamedTuple):
    """Logits [n, VOCAB], which rows they belong to and what is verified."""

    logits: Tensor
    batch: SamplingBatch
    rows: SamplingRows
    drafts: Drafts

    def verify(self, method: Method) -> Verification:
        return verify(self.logits, self.batch, self.rows, self.drafts, method)


def make_step(case: Case, logits: Tensor, draft_ids: Tensor, draft_logits: Tensor | None) -> Step:
    """A step of as many requests as `draft_ids` [R, K] has rows, on the device of the logits."""
    num_rows, device = len(draft_ids), logits.device
    history = torch.zeros((num_rows, HISTORY + K), dtype=torch.int32, device=device)
    history[:, HISTORY:] = draft_ids
    rows = SamplingRows(num_rows, VOCAB, device, history=history)
    for row in range(num_rows):
        rows.add(row, case.params, seed=row * 7919, choice=0, prompt_len=8, num_tokens=HISTORY)
    rows.flush()
    rows_np = np.repeat(np.arange(num_rows, dtype=np.int32), 1 + K)
    depths = torch.arange(1 + K, dtype=torch.int32, device=device).repeat(num_rows)
    batch = SamplingBatch(
        rows=torch.from_numpy(rows_np).to(device),
        positions=HISTORY + depths.long(),
        rows_np=rows_np,
        needs=rows.needs(rows_np),
        depths=depths,
    )
    full = partial(torch.full, (num_rows,), dtype=torch.int32, device=device)
    drafts = Drafts(
        starts=torch.arange(0, num_rows * (1 + K), 1 + K, device=device),
        num_drafts=full(K),
        token_ids=draft_ids,
        room=full(1 + K),
        logits=draft_logits,
    )
    return Step(logits, batch, rows, drafts)


def measured(case: Case, gb_per_s: float) -> dict[str, Any]:
    """The figure of a case; about half of the drafts are accepted."""
    torch.manual_seed(0)
    target = torch.randn(NUM_ROWS, 1 + K, VOCAB, device=DEVICE).mul_(3.0)
    draft = torch.randn(NUM_ROWS, K, VOCAB, device=DEVICE).add_(target[:, :K])
    draft_ids = draft.div(0.8).sub_(torch.empty_like(draft).exponential_().log_()).argmax(2).int()
    if case.method == "coupled" or case.params.greedy:
        draft_ids = draft.argmax(2).int()
    logits = target.flatten(0, 1).to(case.dtype)
    q = draft.div_(0.8) if case.has_draft_logits else None
    step = make_step(case, logits, draft_ids, q)
    bound = (logits.nbytes + (0 if q is None else q.nbytes)) / gb_per_s / 1e3
    value = graph_us(partial(step.verify, case.method))
    accepted = float(step.verify(case.method).num_new.float().mean()) - 1.0
    wrong = mismatches(case, logits, draft_ids, q)
    print(
        f"{case.name}: {value:.1f} µs, {value / bound:.2f} reads, {accepted:.2f} accepted, "
        f"{wrong} rows wrong",
        flush=True,
    )
    return timed_figure(
        f"verification: {case.name}, {NUM_ROWS}x{1 + K}x{VOCAB}",
        value,
        MUST * bound if case.must else None,
        bound,
        f"{wrong} of {CHECKED_ROWS} rows differ",
        COMMAND,
    )


def mismatches(case: Case, logits: Tensor, draft_ids: Tensor, draft_logits: Tensor | None) -> int:
    """The number of the first rows whose tokens differ from plain torch's."""
    some, ids = logits[: CHECKED_ROWS * (1 + K)], draft_ids[:CHECKED_ROWS]
    q = None if draft_logits is None else draft_logits[:CHECKED_ROWS]
    ours = make_step(case, some, ids, q).verify(case.method)
    on_cpu = make_step(case, some.cpu(), ids.cpu(), None if q is None else q.cpu())
    plain = on_cpu.verify(case.method)
    return int((ours.token_ids.cpu() != plain.token_ids).any(1).sum())


def figures() -> Iterator[dict[str, Any]]:
    """All figures, in one run."""
    gb_per_s = copy_gb_per_s()
    print(f"copy {gb_per_s:.0f} GB/s", flush=True)
    for case in CASES:
        yield measured(case, gb_per_s)
        torch.cuda.empty_cache()


def main() -> None:
    """Measure, and say whether every figure is what it must be."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print_all(figures())


if __name__ == "__main__":
    main()
