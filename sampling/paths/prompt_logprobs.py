"""Logprobs of a prompt's own tokens, in the mode of their request.

A prompt's token has the value it would have had if it had been drawn after the tokens before it:
in the processed modes its row's masks, bias, repetition penalty, temperature and filters apply.
Parameters that count the output (presence and frequency penalties, `min_tokens`) have no effect.
"""

from __future__ import annotations

import msgspec
import numpy as np
import torch
from torch import Tensor

from sampling.batch import LogprobsOutput, SamplingBatch
from sampling.device.triton_support import kernels_run_on
from sampling.kernels.logprobs import MAX_TOP
from sampling.params import LogprobsMode, SamplingParams
from sampling.paths import torch_path, triton_path
from sampling.paths.logprobs import prompt_logprobs
from sampling.rows import SamplingRows
from sampling.vocab_shard import VocabShard

MAX_EXPLICIT = 2047
"""Ids of a position that kernels report at a time."""


class PromptReporter:
    """Computes the logprobs of one prompt's tokens.

    Args:
        params: the request's parameters.
        mode: which values to report; `params` may name another mode for the output.
        num_top: top tokens to report; a few more may come.
        shard: the ids whose logits it gets.
        history: int32 [max_len], the prompt's tokens on the device.
    """

    def __init__(
        self,
        params: SamplingParams,
        mode: LogprobsMode,
        num_top: int,
        *,
        shard: VocabShard,
        history: Tensor,
    ) -> None:
        self._mode = mode
        self._num_top = num_top
        self._shard = shard
        self._history = history
        self._params = msgspec.structs.replace(
            params,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            min_tokens=0,
            logprobs=min(num_top, MAX_TOP),
            logprob_token_ids=None,
            logprobs_mode=mode,
            kept_logprob=False,
            constrained=False,
        )

    def __call__(
        self, logits: Tensor, position: int, explicit_ids: Tensor | None = None
    ) -> LogprobsOutput:
        """Report the prompt tokens at `position` .. position + N - 1.

        Args:
            logits: [N, width], from which each of them would have been drawn.
            position: of the first of them.
            explicit_ids: int64 [N or 1, J], ids to report; those that no token has get -inf.
        """
        # A copy: for a slice, which may begin at any address, kernels would be compiled anew.
        targets = self._history[position : position + len(logits)].clone()
        if self._mode.startswith("processed"):
            return self._processed(logits, targets, position, explicit_ids)
        return prompt_logprobs(
            logits,
            targets,
            num_top=self._num_top,
            explicit_ids=explicit_ids,
            normalized=self._mode == "raw_logprobs",
            shard=self._shard,
        )

    def _processed(
        self, logits: Tensor, targets: Tensor, position: int, explicit_ids: Tensor | None
    ) -> LogprobsOutput:
        """Report each target as if it had been drawn; penalties need a row for each history."""
        if explicit_ids is not None:
            explicit_ids = explicit_ids.expand(len(logits), -1)
        found = self._drawn(logits, targets, position, explicit_ids)
        if self._num_top <= MAX_TOP:
            return found
        # Lists longer than kernels make: every id is asked for, then sorted, equals by the lower.
        every = torch.arange(self._shard.vocab_size, device=logits.device)
        parts = [
            self._drawn(logits, targets, position, ids.expand(len(logits), -1)).explicit
            for ids in torch.split(every, MAX_EXPLICIT)
        ]
        top = torch.cat(parts, dim=1).sort(dim=1, descending=True, stable=True)
        most = min(self._num_top, self._shard.vocab_size)
        return found._replace(
            top_ids=top.indices[:, :most].int(), top_logprobs=top.values[:, :most]
        )

    def _drawn(
        self, logits: Tensor, targets: Tensor, position: int, explicit_ids: Tensor | None
    ) -> LogprobsOutput:
        """Report a draw from rows that are made for it, since penalties count what is drawn."""
        count, device = len(logits), logits.device
        num_rows = count if self._params.penalized else 1
        history = self._history.expand(num_rows, -1)
        rows = SamplingRows(
            num_rows, self._shard.vocab_size, device, history=history, shard=self._shard
        )
        for row in range(num_rows):
            before = position + row
            rows.add(row, self._params, seed=0, choice=0, prompt_len=before, num_tokens=before)
        rows.flush()
        rows_np = np.arange(count, dtype=np.int32) % num_rows
        positions = torch.arange(position, position + count, device=device)
        batch = SamplingBatch(
            rows=positions.sub(position).remainder_(num_rows).to(torch.int32),
            positions=positions,
            rows_np=rows_np,
            needs=rows.needs(rows_np),
        )
        draw = triton_path.draw if kernels_run_on(device) else torch_path.draw
        drawn = draw(logits, batch, rows, reported_ids=targets, explicit_ids=explicit_ids)
        assert drawn.logprobs is not None, "the rows ask for logprobs"
        return drawn.logprobs
