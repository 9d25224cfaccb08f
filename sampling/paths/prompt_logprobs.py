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
from sampling.params import LogprobsMode, SamplingParams
from sampling.paths import torch_path, triton_path
from sampling.paths.logprobs import prompt_logprobs
from sampling.rows import SamplingRows
from sampling.vocab_shard import VocabShard


class PromptReporter:
    """Computes the logprobs of one prompt's tokens.

    Args:
        params: the request's parameters.
        mode: which values to report; `params` may name another mode for the output.
        num_top: top tokens to report; a few more may come.
        token_ids: explicit ids to report.
        shard: the ids whose logits it gets.
        history: int32 [max_len], the prompt's tokens on the device.
    """

    def __init__(
        self,
        params: SamplingParams,
        mode: LogprobsMode,
        num_top: int,
        token_ids: tuple[int, ...],
        *,
        shard: VocabShard,
        history: Tensor,
    ) -> None:
        self._mode = mode
        self._num_top = num_top
        self._shard = shard
        self._history = history
        self._explicit_ids = None
        if token_ids:
            self._explicit_ids = torch.tensor(token_ids, dtype=torch.int64).to(history.device)
        self._params = msgspec.structs.replace(
            params,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            min_tokens=0,
            logprobs=num_top,
            logprob_token_ids=token_ids or None,
            logprobs_mode=mode,
            kept_logprob=False,
            constrained=False,
        )

    def __call__(self, logits: Tensor, position: int) -> LogprobsOutput:
        """Report the prompt tokens at `position` .. position + N - 1.

        Args:
            logits: [N, width], from which each of them would have been drawn.
            position: of the first of them.
        """
        # A copy: for a slice, which may begin at any address, kernels would be compiled anew.
        targets = self._history[position : position + len(logits)].clone()
        if self._mode.startswith("processed"):
            return self._processed(logits, targets, position)
        return prompt_logprobs(
            logits,
            targets,
            num_top=self._num_top,
            explicit_ids=self._explicit_ids,
            normalized=self._mode == "raw_logprobs",
            shard=self._shard,
        )

    def _processed(self, logits: Tensor, targets: Tensor, position: int) -> LogprobsOutput:
        """Report each target as if it had been drawn; penalties need a row for each history."""
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
        if kernels_run_on(device):
            drawn = triton_path.draw(logits, batch, rows, reported_ids=targets)
        else:
            drawn = torch_path.draw(logits, batch, rows, reported_ids=targets)
        assert drawn.logprobs is not None, "the rows ask for logprobs"
        return drawn.logprobs
