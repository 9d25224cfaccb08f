"""Logprobs of a prompt's own tokens, from the hidden states of the step that computes them."""

from __future__ import annotations

import numpy as np
import torch

from engine.arrays import Int32Array
from engine.batch import RequestRows
from engine.messages.request import PromptLogprobsParams
from engine.plan import PromptSpan, StepPlan
from engine.runner.adapters import HeadLogits
from engine.runner.logit_chunks import logit_chunks
from sampling.batch import LogprobsOutput
from sampling.device.mirror import to_device
from sampling.paths.prompt_logprobs import PromptReporter
from sampling.vocab_shard import VocabShard


def span_logprobs(
    plan: StepPlan,
    span: PromptSpan,
    query_starts: Int32Array,
    hidden: torch.Tensor,
    logits: HeadLogits,
    rows: RequestRows,
    shard: VocabShard,
) -> LogprobsOutput:
    """Report the prompt tokens after a span's query tokens, through the LM head in chunks.

    Args:
        query_starts: [R + 1], the plan's rows in `hidden`.
        hidden: [T, hidden_size], of all tokens of the step.
        logits: of hidden states. shard: the ids of them.
    """
    wanted = span.choice.request.prompt_logprobs
    assert wanted is not None, "a span is of a request that asks for prompt logprobs"
    report = PromptReporter(
        span.choice.request.params,
        wanted.mode,
        wanted.num_top,
        shard=shard,
        history=rows.token_ids[int(plan.rows[span.row_idx])],
    )
    start = int(query_starts[span.row_idx])
    computed = int(plan.starts[span.row_idx])  # position of the row's first query token
    slots, outputs = None, []
    shared_ids = _shared_ids(wanted, hidden.device)
    for tokens in logit_chunks(start + span.first, start + span.last, max(shard.widths)):
        position = computed + tokens.start - start + 1  # of the token after the chunk's first
        ids = shared_ids
        if wanted.id_lists is not None:
            listed = wanted.id_lists[position - wanted.start :][: tokens.stop - tokens.start]
            ids = to_device(listed.astype(np.int64), hidden.device)
        if plan.adapters is not None:
            slots = np.full(tokens.stop - tokens.start, plan.adapters[span.row_idx])
        outputs.append(report(logits(hidden[tokens], slots), position, ids))
    return LogprobsOutput.concat(outputs)


def _shared_ids(wanted: PromptLogprobsParams, device: torch.device) -> torch.Tensor | None:
    """The explicit ids of all positions alike, int64 [1, J]; None for none.

    They are copied without waiting: the device would stand still between two chunks.
    """
    if not wanted.token_ids:
        return None
    return to_device(np.array([wanted.token_ids], dtype=np.int64), device)
