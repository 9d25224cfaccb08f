"""Runs a step of scoring on the device: rows of no choice, read at some of their positions."""

from __future__ import annotations

import numpy as np
import torch

from engine.contracts.attention import AttentionInputs
from engine.contracts.scoring import PlanStates, ScoringPlan
from engine.memory.snapshots import NO_SNAPSHOT
from engine.memory.states import RowStates, StepStates
from engine.runner.adapters import HeadLogits, of_tokens
from engine.runner.forward import Forward
from engine.runner.host_copy import HostCopy
from engine.runner.logit_chunks import logit_chunks
from sampling.batch import ListedLogprobs
from sampling.device.mirror import to_device_together
from sampling.paths.listed_logprobs import listed_logprobs
from sampling.vocab_shard import VocabShard


@torch.inference_mode()
def issue_scoring(
    plan: ScoringPlan,
    head: HeadLogits,
    forward: Forward,
    device: torch.device,
    shard: VocabShard,
    states: RowStates | None = None,
) -> HostCopy:
    """Compute a plan's rows, and read its ids' logprobs at the positions it names.

    `head` makes logits and `shard` is their ids; `states` is where the model's layers keep them.
    """
    arrays = (
        *(plan.query_starts, plan.seq_lens, plan.block_tables, plan.slots),
        *(plan.token_ids, plan.positions, plan.read_tokens, plan.id_lists, plan.embed_tokens),
    )
    query_starts, seq_lens, block_tables, slots, *tokens = to_device_together(arrays, device)
    token_ids, positions, read_tokens, id_lists, embed_tokens = tokens
    inputs = AttentionInputs(
        query_starts=query_starts,
        query_starts_np=plan.query_starts,
        seq_lens=seq_lens,
        block_tables=block_tables,
        slots=slots,
        seq_lens_np=plan.seq_lens,
        max_query_len=int(np.diff(plan.query_starts).max()),
        decode_len=0,  # no row decodes, however short
        sharing=plan.sharing,
    )
    own = None if states is None else _states_of(plan, states, query_starts, positions)
    adapters = of_tokens(plan.adapters, np.diff(plan.query_starts))
    final = forward(token_ids, positions, inputs, own, adapters).final
    read = final[read_tokens]
    # Which take a lone question's host as long as its tokens take the GPU, where there are none.
    hidden = (final[embed_tokens] if len(embed_tokens) else final[:0]).float()
    parts = []
    for chunk in logit_chunks(0, len(read), max(shard.widths)):
        own_slots = None if adapters is None else adapters[plan.read_tokens[chunk]]
        logits = head(read[chunk], own_slots)
        parts.append(listed_logprobs(logits, id_lists[chunk], shard))
    listed = ListedLogprobs.concat(parts, id_lists)
    return HostCopy({**listed._asdict(), "hidden": hidden})


def _states_of(
    plan: ScoringPlan, states: RowStates, query_starts: torch.Tensor, positions: torch.Tensor
) -> StepStates:
    """The states that a plan's rows begin from and leave: none where it names none."""
    none = np.full(len(plan.seq_lens), NO_SNAPSHOT, dtype=np.int32)
    named = plan.states or PlanStates(none, none, np.zeros(1, dtype=np.int32))
    sources, targets = to_device_together((named.sources, named.targets), positions.device)
    bounds = [*named.part_starts.tolist(), len(plan.seq_lens)]
    return states.of_rows(query_starts, plan.query_starts, positions, sources, targets, bounds)
