"""A step of scoring on the device: rows that no choice holds, read at some of their positions."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import torch

from engine.buffers import HostCopy, to_device
from engine.contracts.attention import AttentionInputs
from engine.contracts.model import CausalLM
from engine.contracts.scoring import ScoringPlan, ScoringResult
from engine.plan import RunnerLostError
from engine.runner.forward import Forward
from sampling.paths.logprobs import listed_logprobs

LOGITS_BYTES = 64 << 20
"""Float32 logits held at once."""


class LaunchedScoring:
    """A step of scoring that was launched; see `ScoringHandle`."""

    def __init__(self, issued: Future[HostCopy]) -> None:
        self._issued = issued

    def wait(self, timeout_s: float | None = None) -> ScoringResult:
        try:
            arrays = self._issued.result(timeout_s).arrays()
        except torch.AcceleratorError as error:  # sticky: the CUDA context is gone
            raise RunnerLostError(str(error)) from error
        return ScoringResult(values=arrays["values"], others=arrays["others"])


@torch.inference_mode()
def issue_scoring(
    plan: ScoringPlan, model: CausalLM, forward: Forward, device: torch.device
) -> HostCopy:
    """Compute a plan's rows and read what it reads."""
    query_starts = to_device(plan.query_starts, device)
    inputs = AttentionInputs(
        query_starts=query_starts,
        query_starts_np=plan.query_starts,
        seq_lens=to_device(plan.seq_lens, device),
        block_tables=to_device(plan.block_tables, device),
        slots=to_device(plan.slots, device),
        seq_lens_np=plan.seq_lens,
        max_query_len=int(np.diff(plan.query_starts).max()),
        decode_len=0,  # no row decodes, however short
        sharing=plan.sharing,
    )
    token_ids, positions = to_device(plan.token_ids, device), to_device(plan.positions, device)
    hidden = forward(token_ids, positions, inputs).final
    read = hidden[to_device(plan.read_tokens, device)]
    id_lists = to_device(plan.id_lists, device)
    chunk = max(1, LOGITS_BYTES // (4 * model.vocab_size))
    values = torch.empty(plan.id_lists.shape, dtype=torch.float32, device=device)
    others = torch.empty(len(read), dtype=torch.float32, device=device)
    for first in range(0, len(read), chunk):
        part = slice(first, first + chunk)
        values[part], others[part] = listed_logprobs(model.logits(read[part]), id_lists[part])
    return HostCopy({"values": values, "others": others})
