"""The kernels report in the processed modes what a cut keeps, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sampling.batch import SamplingBatch
from sampling.kernels.logits import Source
from sampling.kernels.logprobs import gather_logprobs
from sampling.kernels.tile_pass import tile_pass
from sampling.params import LogprobsMode, SamplingParams
from sampling.race import Cut
from sampling.rows import SamplingRows
from sampling.vocab_shard import VocabShard
from tests.sampling.kernel_cases import DEVICES, pytestmark  # noqa: F401

LOGITS = [3.0, 5.0, 3.0, 3.0, 1.0, 3.0]
"""The cut keeps 1, 0 and 2; the ids 3 and 5 equal the last one kept."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["processed_logprobs", "processed_logits"])
def test_tokens_that_equal_the_last_one_kept_are_not_shown(mode: LogprobsMode, device: str) -> None:
    where = torch.device(device)
    params = SamplingParams(temperature=0.5, logprobs=5, logprobs_mode=mode)
    history = torch.zeros(1, 8, dtype=torch.int32, device=where)
    rows = SamplingRows(1, len(LOGITS), where, history=history)
    rows.add(0, params, seed=0, choice=0, prompt_len=1, num_tokens=4)
    rows.flush()
    rows_np = np.zeros(1, dtype=np.int32)
    batch = SamplingBatch(
        torch.zeros(1, dtype=torch.int32, device=where),
        torch.tensor([4], device=where),
        rows_np,
        rows.needs(rows_np),
    )
    source = Source.of(torch.tensor([LOGITS], device=where), batch, rows)
    out = gather_logprobs(
        source,
        tile_pass(source, edited=False, peaked=False, reported=True),
        Cut(torch.tensor([3.0], device=where), torch.tensor([2], dtype=torch.int32, device=where)),
        torch.zeros(1, dtype=torch.float64, device=where),
        torch.zeros(1, device=where),
        torch.tensor([3], device=where),
        num_top=5,
        explicit_ids=torch.arange(len(LOGITS), device=where)[None],
        edited=False,
        shard=VocabShard.whole(len(LOGITS)),
    )
    # (value - maximum) / T as a logprob before its offset, value / T as a logit: exact.
    base = 5.0 if mode.endswith("logprobs") else 0.0
    values = [(value - base) / 0.5 for value in LOGITS]
    wanted = [value if i in (0, 1, 2) else -np.inf for i, value in enumerate(values)]
    assert out.explicit[0].tolist() == wanted
    assert out.chosen.tolist() == [-np.inf]
    assert out.top_ids[0, :3].tolist() == [1, 0, 2]
    assert out.top_logprobs[0].tolist() == [values[1], values[0], values[2], -np.inf, -np.inf]
