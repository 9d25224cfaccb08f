"""The sampler on its kernels equals the sampler in plain torch: tokens, flags, logprobs, counts.

Both draw from the same noise. A token may differ where two keys are closer than the error of the
float32 tile masses, at most 2**-17 a draw (see `sampling.race`): below 0.002 over these draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling import sampler as sampler_module
from sampling.batch import NOTHING_ALLOWED, UNUSABLE_LOGITS
from sampling.device.triton_support import INTERPRETED
from sampling.params import SamplingParams
from sampling.rows import SamplingRows
from sampling.sampler import Sampler, SamplerOutput, SamplingBatch
from tests.sampling.bounds import watch_bounds
from tests.sampling.environment import config_on
from tests.sampling.kernel_cases import DEVICES, EDITS, KEPT_ERROR, pytestmark  # noqa: F401
from tests.sampling.steps import put_masks

NUM_ROWS, PROMPT_LEN = 12, 10
NOTHING_LEFT = 10  # the row whose grammar, if it has one, allows nothing
WISHES: dict[str, list[dict[str, Any]]] = {
    "plain": [{}],
    "greedy beside random": [{"temperature": 0.0}, {}],
    "top-k": [{"top_k": 5}, {"top_k": 50}, {"top_k": 1}],
    "top-p": [{"top_p": 0.5}, {"top_p": 0.95}, {}],
    "all filters": [{"top_k": 50, "top_p": 0.95, "min_p": 0.01}, {"min_p": 0.2}],
    "wide filters": [{"top_k": 600, "top_p": 0.8, "temperature": 2.0}, {"min_p": 0.001}],
    "only the top": [{"min_p": 1.0}, {"min_p": 1.0, "top_p": 0.9}, {"top_p": 1e-12}, {}],
    "edits": [EDITS, {}, {"allowed_token_ids": tuple(range(0, 100, 3))}],
    "edits and filters": [EDITS | {"top_p": 0.9}, {"top_k": 20, "temperature": 1e-8}],
    "raw logprobs": [{"logprobs": 5}, {"logprobs": 0, "logprob_token_ids": (1, 1, 8)}, {}],
    "processed logprobs": [
        EDITS | {"logprobs": 3, "logprobs_mode": "processed_logprobs", "top_k": 9},
        {"logprobs": 2, "logprobs_mode": "processed_logits", "temperature": 0.5},
        {"logprobs": 2, "logprobs_mode": "raw_logits"},
    ],
    "grammar": [
        {"constrained": True},
        {},
        EDITS | {"constrained": True, "temperature": 0.7, "top_p": 0.9},
        {"constrained": True, "temperature": 0.0},
        {"constrained": True, "logprobs": 3, "logprobs_mode": "processed_logprobs", "top_k": 9},
    ],
    "kept": [
        {"kept_logprob": True, "top_p": 0.8},
        {"kept_logprob": True, "constrained": True},
        EDITS | {"kept_logprob": True, "min_p": 0.05, "temperature": 0.5},
        {"logprobs": 1},
        {"kept_logprob": True, "allowed_token_ids": (1, 8, 50), "temperature": 0.0},
    ],
    "kept without masks": [{"kept_logprob": True, "top_k": 7}, {"kept_logprob": True}, {}],
}


def allowed_ids(wishes: list[dict[str, Any]], vocab_size: int) -> list[list[int] | None]:
    """What the grammars of the rows allow: a third of the ids, nothing in row `NOTHING_LEFT`.

    Row 6 has no mask, whatever its parameters.
    """
    generator = torch.Generator().manual_seed(3)
    allowed: list[list[int] | None] = []
    for row in range(NUM_ROWS):
        ids = torch.randint(0, vocab_size, (vocab_size // 3,), generator=generator).tolist()
        masked = "constrained" in wishes[row % len(wishes)] and row != 6
        allowed.append([] if masked and row == NOTHING_LEFT else ids if masked else None)
    return allowed


def draw(logits: Tensor, wishes: list[dict[str, Any]], vocab_size: int) -> tuple[Any, Tensor]:
    """Draw once for every row; return the output and the counts it leaves."""
    device = logits.device
    generator = torch.Generator().manual_seed(vocab_size)
    history = torch.randint(0, vocab_size, (NUM_ROWS, 64), generator=generator, dtype=torch.int32)
    rows = SamplingRows(
        NUM_ROWS, vocab_size, device, history=history.to(device), max_masks=NUM_ROWS
    )
    for row in range(NUM_ROWS):
        seed = row * 7919 - 3
        # A seed of its own keeps a row on the native path, whatever FlashInfer does.
        params = SamplingParams(seed=seed, **wishes[row % len(wishes)])
        rows.add(row, params, seed=seed, choice=row % 3, prompt_len=PROMPT_LEN, num_tokens=20)
    rows.flush()
    rows_np = np.arange(NUM_ROWS, dtype=np.int32)
    batch = SamplingBatch(
        torch.from_numpy(rows_np.copy()).to(device),
        torch.full((NUM_ROWS,), 20, device=device),
        rows_np,
        rows.needs(rows_np),
        mask_slots=put_masks(rows, allowed_ids(wishes, vocab_size)),
    )
    return Sampler(config_on(device), rows)(logits, batch), rows.counts.words


def assert_equal(ours: SamplerOutput, wanted: SamplerOutput, wishes: list[dict[str, Any]]) -> None:
    assert torch.equal(ours.bad.cpu(), wanted.bad)
    assert torch.equal(ours.token_ids.cpu(), wanted.token_ids)
    if wanted.logprobs is None:
        assert ours.logprobs is None
        return
    assert ours.logprobs is not None
    reports = {"logprobs", "kept_logprob"}
    asked = torch.tensor([bool(reports & wishes[i % len(wishes)].keys()) for i in range(NUM_ROWS)])
    good = (wanted.bad == 0) & asked  # other rows' logprobs are nobody's
    for name, want in wanted.logprobs._asdict().items():
        have = getattr(ours.logprobs, name).cpu()
        if want.dtype == torch.int32:
            assert torch.equal(have[good], want[good]), name
        else:  # values are float32(x - offset); the offsets' masses agree to 2**-18
            atol = KEPT_ERROR if name == "kept" else 1e-5
            torch.testing.assert_close(have[good], want[good], rtol=1e-6, atol=atol)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WISHES)
@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(111, torch.float32), (2500, torch.bfloat16)],
)
def test_kernels_equal_plain_torch(
    vocab_size: int, dtype: torch.dtype, name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(NUM_ROWS, vocab_size + 5, generator=generator).mul_(3).to(dtype)
    logits[1, vocab_size // 2] = torch.nan
    logits[3, :vocab_size] = -torch.inf
    logits[5, 7] = torch.inf
    logits[:, vocab_size:] = torch.nan  # columns beyond the vocabulary are never read
    ours, counts = draw(logits.to(device), WISHES[name], vocab_size)
    with monkeypatch.context() as plain:
        plain.setattr(sampler_module, "kernels_run_on", lambda device: False)
        wanted, wanted_counts = draw(logits, WISHES[name], vocab_size)
    codes = dict.fromkeys((1, 3, 5), UNUSABLE_LOGITS)
    if allowed_ids(WISHES[name], vocab_size)[NOTHING_LEFT] == []:
        codes[NOTHING_LEFT] = NOTHING_ALLOWED
    assert wanted.bad.tolist() == [codes.get(row, 0) for row in range(NUM_ROWS)]
    assert_equal(ours, wanted, WISHES[name])
    assert torch.equal(counts.cpu(), wanted_counts)


@pytest.mark.skipif(not INTERPRETED, reason="watches the interpreter")
def test_kernels_stay_inside_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """All features at once, with fewer explicit ids and top tokens than their buckets hold."""
    everything = EDITS | {"top_k": 50, "top_p": 0.9, "min_p": 0.01, "logprobs": 3}
    everything |= {"logprob_token_ids": (0,) * 17, "logprobs_mode": "processed_logprobs"}
    masked = {"allowed_token_ids": (1, 5, 9), "logprobs": 20, "logprobs_mode": "processed_logits"}
    strayed = watch_bounds(monkeypatch)
    logits = torch.randn(NUM_ROWS, 2500, generator=torch.Generator().manual_seed(2))
    logits[1] = torch.nan
    draw(logits, [everything, masked, {}, {"constrained": True, "kept_logprob": True}], 2500)
    assert strayed == set()
