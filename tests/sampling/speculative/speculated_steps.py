"""Steps of speculation for tests, with requests in rows and their drafts in the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sampling.batch import Drafts, SamplingBatch, Verification
from sampling.params import SamplingParams
from sampling.rows import SamplingRows
from sampling.speculative.verification import Method, verify
from sampling.vocab_shard import VocabShard
from tests.sampling.steps import put_masks

PROMPT_LEN = 10


@dataclass
class Step:
    """R requests about to be verified, request r in row r; all on the CPU until `verify`.

    Attributes:
        params: of each request.
        logits: [n, width >= vocab_size]; the logit rows of a request follow one another.
        history: int32 [R, max_len], without drafts.
        num_tokens: R lengths, prompt and output.
        draft_ids: int32 [R, k].
        num_drafts: int32 [R].
        room: int32 [R]; no limit if None.
        draft_logits: float32 [slots, k, vocab_size].
        seeds, choices: R each, of the noise.
        counted: whether the penalties are reported of the drafts.
        allowed: the ids that grammars allow at each of the n logit rows, None where they allow all.
    """

    params: Sequence[SamplingParams]
    logits: Tensor
    vocab_size: int
    history: Tensor
    num_tokens: Sequence[int]
    draft_ids: Tensor
    num_drafts: Tensor
    room: Tensor | None = None
    draft_logits: Tensor | None = None
    seeds: Sequence[int] | None = None
    choices: Sequence[int] | None = None
    prompt_len: int = PROMPT_LEN
    counted: bool = True
    allowed: Sequence[Sequence[int] | None] = ()

    def make(
        self, device: torch.device, shard: VocabShard | None = None
    ) -> tuple[SamplingBatch, SamplingRows, Drafts]:
        """Make what `verify` takes beside the logits, on the rank that holds the shard."""
        num_rows, k = self.draft_ids.shape
        history = self._history().to(device)
        rows = SamplingRows(
            num_rows,
            self.vocab_size,
            device,
            history=history,
            max_masks=len(self.allowed),
            shard=shard,
        )
        for row, params in enumerate(self.params):
            rows.add(
                row,
                params,
                seed=row * 7919 - 3 if self.seeds is None else self.seeds[row],
                choice=row % 3 if self.choices is None else self.choices[row],
                prompt_len=self.prompt_len,
                num_tokens=self.num_tokens[row],
            )
        rows.flush()
        lengths = self.num_drafts.long() + 1
        rows_np = np.repeat(np.arange(num_rows, dtype=np.int32), lengths.numpy())
        starts = lengths.cumsum(0) - lengths
        depths = torch.arange(len(rows_np)) - starts[rows_np]
        batch = SamplingBatch(
            rows=torch.from_numpy(rows_np).to(device),
            positions=(torch.tensor(self.num_tokens)[rows_np] + depths).to(device),
            rows_np=rows_np,
            needs=rows.needs(rows_np),
            depths=depths.int().to(device) if self.counted else None,
            mask_slots=put_masks(rows, self.allowed) if self.allowed else None,
        )
        room = torch.full((num_rows,), k + 1, dtype=torch.int32) if self.room is None else self.room
        q = self.draft_logits
        if q is not None:
            kept = rows.shard
            q = q[..., kept.first : kept.first + kept.width].contiguous().to(device)
        drafts = Drafts(
            starts.to(device),
            self.num_drafts.int().to(device),
            self.draft_ids.int().to(device),
            room.int().to(device),
            q,
        )
        return batch, rows, drafts

    def verify(
        self,
        method: Method = "standard",
        rates: Sequence[float] | None = None,
        device: torch.device | None = None,
    ) -> tuple[Verification, SamplingRows]:
        """Verify the step; return the outcome and the rows with their counts."""
        device = device or torch.device("cpu")
        batch, rows, drafts = self.make(device)
        given = None if rates is None else torch.tensor(rates, dtype=torch.float64, device=device)
        return verify(self.logits.to(device), batch, rows, drafts, method, given), rows

    def _history(self) -> Tensor:
        """The history with the drafts written into it, as the engine does."""
        history = self.history.clone()
        for row, length in enumerate(self.num_tokens):
            for depth in range(int(self.num_drafts[row])):
                history[row, length + depth] = self.draft_ids[row, depth].clamp(min=0)
        return history


def random_step(
    wishes: Sequence[dict[str, Any]],
    num_rows: int,
    k: int,
    vocab_size: int,
    *,
    has_draft_logits: bool,
    seed: int = 1,
    likely: float = 1.0,
    alike: bool = False,
) -> Step:
    """A step whose drafts are drawn from logits like the target's, some of them missing.

    Args:
        wishes: parameters, in turn.
        likely: how much of the target's logits the draft's share.
        alike: whether all depths of a request have the same logits, so that tokens recur.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    num_drafts = torch.full((num_rows,), k, dtype=torch.int32)
    num_drafts[num_rows // 2] = 0
    lengths = num_drafts.long() + 1
    starts = lengths.cumsum(0) - lengths
    logits = normal(int(lengths.sum()), vocab_size + 5) * 6
    if alike:
        logits = logits[starts.repeat_interleave(lengths)]
    draft_logits = normal(num_rows + 1, k, vocab_size)
    for row in range(num_rows):
        of_row = logits[int(starts[row]) : int(starts[row]) + int(num_drafts[row]), :vocab_size]
        draft_logits[row, : len(of_row)] += likely * of_row
    uniform = torch.rand(num_rows + 1, k, vocab_size, generator=generator)
    draft_ids = (draft_logits - (-uniform.log()).log()).argmax(2)[:num_rows].int()
    history = torch.randint(0, vocab_size, (num_rows, 64), generator=generator, dtype=torch.int32)
    return Step(
        params=[SamplingParams(**wishes[row % len(wishes)]) for row in range(num_rows)],
        logits=logits,
        vocab_size=vocab_size,
        history=history,
        num_tokens=[20] * num_rows,
        draft_ids=draft_ids,
        num_drafts=num_drafts,
        draft_logits=draft_logits if has_draft_logits else None,
    )
