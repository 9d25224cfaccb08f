"""Rows that a target and a drafter serve together, with acceptance decided by the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.attention.cuda import CudaAttention
from engine.attention.plain import PlainAttention
from engine.batch import RequestRows
from engine.contracts.attention import AttentionBackend, AttentionInputs, AttentionSpec
from engine.contracts.drafter import Drafter, VerifiedStep
from engine.contracts.model import ModelInputs
from engine.memory.pages import KVCache
from engine.models.decoder import Decoder
from sampling.batch import SamplingBatch
from sampling.params import SamplingParams
from sampling.rows import SamplingRows
from sampling.vocab_shard import VocabShard

BLOCK_SIZE = 4
NUM_ROWS = 3
MAX_LEN = 96
MAX_DECODE_LEN = 8
DEVICES = [
    pytest.param(torch.device("cpu"), id="cpu"),
    pytest.param(torch.device("cuda"), id="cuda", marks=pytest.mark.gpu),
]

NextLogits = Callable[[list[int], list[int]], torch.Tensor]
"""(text, drafts of the step so far) → the drafter's logits [vocab_size] of what comes next."""


def make_rows(
    vocab_size: int, temperature: float, device: torch.device, shard: VocabShard | None = None
) -> tuple[RequestRows, SamplingRows]:
    """The engine's rows, each with a seed of its own."""
    rows = RequestRows(NUM_ROWS, MAX_LEN, BLOCK_SIZE, device)
    sampling = SamplingRows(NUM_ROWS + 1, vocab_size, device, history=rows.token_ids, shard=shard)
    for row in range(NUM_ROWS):
        params = SamplingParams(temperature=temperature, seed=row)
        sampling.add(row, params, seed=row, choice=0, prompt_len=1, num_tokens=1)
    sampling.flush()
    return rows, sampling


def make_attention(specs: Sequence[AttentionSpec], cache: KVCache) -> AttentionBackend:
    """The engine's for the cache's device; a draft model brings two tokens more than drafts."""
    if cache.layers[0].is_cuda:
        return CudaAttention(specs, cache, NUM_ROWS, MAX_DECODE_LEN)
    return PlainAttention(specs, cache)


@dataclass
class Row:
    """One row: its prompt, then what was accepted; `num_computed` tokens are in the caches."""

    text: list[int]
    limit: int
    num_computed: int = 0
    drafts: list[int] | None = None


class DraftedRows:
    """Runs steps of several rows; every proposal is checked against `next_logits` if given.

    Tables name another row's blocks after a row's limit, as a row's former owner may have left
    them: a drafter that writes there spoils the other row.
    """

    def __init__(
        self,
        target: Decoder,
        drafter: Drafter,
        sampling: SamplingRows,
        rows: list[Row],
        next_logits: NextLogits | None,
    ) -> None:
        self._target, self.drafter, self._sampling = target, drafter, sampling
        self._device = sampling.device
        self.rows = rows
        self._next_logits = next_logits
        per_row = MAX_LEN // BLOCK_SIZE
        num_blocks = NUM_ROWS * per_row + 1
        order = torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(0)) + 1
        self._tables = order.view(NUM_ROWS, per_row).to(torch.int32)
        for i, row in enumerate(rows):
            granted = -(-row.limit // BLOCK_SIZE)
            self._tables[i, granted:] = self._tables[(i + 1) % len(rows), 0]
        specs = target.attention_specs
        cache = KVCache(specs, num_blocks, BLOCK_SIZE, target.dtype, self._device)
        self._attention = make_attention(specs, cache)
        drafter.allocate(num_blocks)
        self.num_checked = 0

    @torch.inference_mode()
    def step(self, queries: dict[int, int]) -> VerifiedStep:
        """Compute tokens of rows; those whose text is then computed draw, draft and are checked.

        Args:
            queries: row to number of prompt tokens, or, for a row that has drafts, how many of
                them are accepted.
        """
        k = self.drafter.num_tokens
        tokens: list[int] = []
        positions: list[int] = []
        bounds, draws = [0], []
        for i, number in queries.items():
            row, start = self.rows[i], self.rows[i].num_computed
            if row.drafts is None:
                ids = row.text[start : start + number]
            else:
                ids = [row.text[-1], *row.drafts]
            tokens += ids
            positions += range(start, start + len(ids))
            bounds.append(len(tokens))
            if row.drafts is not None or start + number == len(row.text):
                accepted = number if row.drafts is not None else 0
                new = [*(row.drafts or [])[:accepted], (7 * len(row.text) + 3 * i) % 90]
                row.text += new[: row.limit - len(row.text)]
                draws.append(i)
        step = self.verified(list(queries), tokens, positions, bounds, draws)
        for i, number in queries.items():
            self.rows[i].num_computed = (
                len(self.rows[i].text) - 1 if i in draws else self.rows[i].num_computed + number
            )
        drafts = self.drafter.propose(step)
        assert drafts.shape == (len(draws), k)
        assert drafts.dtype == torch.int32
        for i, row_drafts in zip(draws, drafts.tolist(), strict=True):
            if self._next_logits is not None:
                self._check(i, row_drafts, self._next_logits)
            self.rows[i].drafts = row_drafts
        return step

    def verified(
        self,
        picked: list[int],
        tokens: list[int],
        positions: list[int],
        bounds: list[int],
        draws: list[int],
    ) -> VerifiedStep:
        input_ids = torch.tensor(tokens, dtype=torch.int32)
        where = torch.tensor(positions)
        lengths = np.diff(bounds)
        row_of = np.repeat(picked, lengths)
        limits = torch.tensor([self.rows[i].limit for i in row_of])
        columns = (where // BLOCK_SIZE).clamp(max=self._tables.shape[1] - 1)
        blocks = self._tables[torch.from_numpy(row_of), columns].long()
        slots = torch.where(where < limits, blocks * BLOCK_SIZE + where % BLOCK_SIZE, 0)
        ends = [positions[end - 1] + 1 for end in bounds[1:]]
        attention = AttentionInputs(
            query_starts=torch.tensor(bounds, dtype=torch.int32),
            query_starts_np=np.array(bounds, dtype=np.int32),
            seq_lens=torch.tensor(ends, dtype=torch.int32),
            block_tables=self._tables[picked],
            slots=slots,
            seq_lens_np=np.array(ends, dtype=np.int32),
            max_query_len=int(lengths.max()),
            decode_len=self.drafter.num_tokens + 1,
        )
        input_ids, where = self._sent(input_ids), self._sent(where)
        attention = replace(attention, **self._sent_fields(attention))
        self._attention.begin(attention)
        inputs = ModelInputs(input_ids, where, self._attention)
        hidden, features = self._target.forward(inputs, self.drafter.feature_layers)
        places = zip(row_of, positions, strict=True)
        following = [self.rows[i].text[p + 1 : p + 2] or [5] for i, p in places]
        draw_rows = torch.tensor([picked.index(i) for i in draws], dtype=torch.int64)
        newest = [len(self.rows[i].text) - 1 for i in draws]
        first = [bounds[picked.index(i)] for i in draws]
        last = [f + n - 1 - positions[f] for f, n in zip(first, newest, strict=True)]
        rows_np = np.array(draws, dtype=np.int32)
        step = VerifiedStep(
            num_drafts=self.drafter.num_tokens,
            rows=torch.tensor(picked),
            input_ids=input_ids,
            positions=where,
            next_ids=torch.tensor([ids[0] for ids in following], dtype=torch.int32),
            hidden=hidden,
            features=features,
            attention=attention,
            draw_rows=draw_rows,
            last=torch.tensor(last, dtype=torch.int64),
            sampling=SamplingBatch(
                rows=torch.from_numpy(rows_np),
                positions=torch.tensor(newest, dtype=torch.int64) + 1,
                rows_np=rows_np,
                needs=self._sampling.needs(rows_np),
            ),
            limits=torch.tensor([self.rows[i].limit for i in draws], dtype=torch.int64),
            block_tables=self._tables[draws],
        )
        return replace(step, **self._sent_fields(step))

    def _sent(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device)

    def _sent_fields(self, value: VerifiedStep | AttentionInputs | SamplingBatch) -> dict[str, Any]:
        """Fields of a step, with those that hold tensors on the rows' device."""
        found = {field.name: getattr(value, field.name) for field in fields(value)}
        for name, each in found.items():
            if isinstance(each, torch.Tensor):
                found[name] = self._sent(each)
            elif isinstance(each, AttentionInputs | SamplingBatch):
                found[name] = replace(each, **self._sent_fields(each))
        return found

    def _check(self, i: int, drafts: list[int], next_logits: NextLogits) -> None:
        row, temperature = self.rows[i], float(self._sampling.floats[i, 0])
        assert temperature == 0.0 or self.drafter.draft_logits is not None
        for depth, draft in enumerate(drafts):
            if len(row.text) + depth >= row.limit:
                return  # never accepted
            expected = next_logits(row.text, drafts[:depth])
            if self.drafter.draft_logits is None:
                assert draft == int(expected.argmax()), (i, row.text, drafts, depth)
            else:
                kept = self.drafter.draft_logits[i, depth].cpu()
                wanted = (expected / temperature).float()
                # A logit is off by what the products that it is a sum of are, however small it is:
                # hidden states after seven layers in float32 are right to about 1e-5.
                atol = 4e-5 * float(wanted[wanted.isfinite()].abs().max())
                torch.testing.assert_close(kept, wanted, atol=atol, rtol=0.0)
                assert kept[draft] > -torch.inf
            self.num_checked += 1
