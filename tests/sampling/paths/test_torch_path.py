"""The torch path reports in the processed modes what the filters leave, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sampling.batch import SamplingBatch
from sampling.params import LogprobsMode, SamplingParams
from sampling.paths import torch_path
from sampling.rows import SamplingRows

LOGITS = [3.0, 5.0, 3.0, 3.0, 1.0, 3.0]
"""Top-k 3 keeps the ids 1, 0 and 2; the ids 3 and 5 equal the last one kept, and are cut."""


@pytest.mark.parametrize("mode", ["processed_logprobs", "processed_logits"])
def test_tokens_that_equal_the_last_one_kept_are_not_shown(mode: LogprobsMode) -> None:
    ids = tuple(range(len(LOGITS)))
    params = SamplingParams(top_k=3, logprobs=5, logprob_token_ids=ids, logprobs_mode=mode)
    history = torch.zeros(1, 8, dtype=torch.int32)
    rows = SamplingRows(1, len(LOGITS), torch.device("cpu"), history=history)
    rows.add(0, params, seed=0, choice=0, prompt_len=1, num_tokens=4)
    rows.flush()
    rows_np = np.zeros(1, dtype=np.int32)
    batch = SamplingBatch(
        torch.from_numpy(rows_np), torch.tensor([4]), rows_np, rows.needs(rows_np)
    )
    out = torch_path.draw(torch.tensor([LOGITS]), batch, rows).logprobs
    assert out is not None
    kept = torch.tensor([5.0, 3.0, 3.0])
    first, second, third = (kept.log_softmax(0) if mode.endswith("logprobs") else kept).tolist()
    wanted = [second, first, third, *[-np.inf] * 3]
    # float32 values of size 5 at most, of one rounding each.
    np.testing.assert_allclose(out.explicit[0, : len(ids)], wanted, rtol=1e-6)
    assert out.top_ids[0, :3].tolist() == [1, 0, 2]
    np.testing.assert_allclose(out.top_logprobs[0, :3], [first, second, third], rtol=1e-6)
    assert (out.top_logprobs[0, 3:] == -torch.inf).all()
    assert out.top_logprobs.shape[1] > 3
