"""The sampler on its kernels equals the sampler in plain torch: tokens, flags, logprobs, counts.

Both draw from the same noise. A token may differ where two keys are closer than the error of the
float32 tile masses, at most 2**-17 a draw (see `sampling.race`): below 0.002 over these draws.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sampling import sampler as sampler_module
from sampling.batch import NOTHING_ALLOWED, UNUSABLE_LOGITS
from sampling.device.triton_support import INTERPRETED
from sampling.sampler import SamplerOutput
from tests.sampling.bounds import watch_bounds
from tests.sampling.drawn_rows import NOTHING_LEFT, NUM_ROWS, allowed_ids, draw
from tests.sampling.kernel_cases import DEVICES, EDITS, KEPT_ERROR, pytestmark  # noqa: F401

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
