"""The rows FlashInfer draws: its inputs, the use of its tokens, and on a GPU its frequencies."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling.batch import SamplingBatch
from sampling.device.triton_support import INTERPRETED
from sampling.paths import triton_path
from sampling.paths.flashinfer import FlashInfer, obstacle
from sampling.sampler import Sampler, SamplerConfig
from sampling.selftest.statistics import chi_square
from tests.sampling.environment import config_on
from tests.sampling.steps import make_batch

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, where a GPU is silent
interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter")
VOCAB_SIZE = 2500
CPU = torch.device("cpu")


@interpreted
def test_it_draws_the_eligible_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Tensor, Tensor, Tensor]] = []

    def sample(logits: Tensor, top_k: Tensor, top_p: Tensor, **options: Any) -> Tensor:
        assert options["filter_apply_order"] == "top_k_first"
        calls.append((logits, top_k, top_p))
        return torch.full((len(logits),), 77, dtype=torch.int32)

    fake = types.ModuleType("flashinfer")
    fake.sampling = types.SimpleNamespace(  # type: ignore[attr-defined]
        top_k_top_p_sampling_from_logits=sample, get_sampling_module=lambda: None
    )
    monkeypatch.setitem(sys.modules, "flashinfer", fake)
    wishes: list[dict[str, Any]] = [
        {"top_k": 5, "temperature": 0.5},
        {"top_k": 5, "seed": 1},
        {"top_p": 0.9, "min_p": 0.2, "logit_bias": {3: 50.0}},
        {"temperature": 0.0},
        {"top_k": 9},
        {},
    ]
    logits = torch.randn(len(wishes), VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    logits[4, 9] = torch.nan
    batch, rows = make_batch(wishes, CPU, VOCAB_SIZE)
    native = triton_path.draw(logits, batch, rows)
    both = triton_path.draw(logits, batch, rows, FlashInfer(CPU))
    assert both.bad.tolist() == native.bad.tolist() == [False] * 4 + [True, False]
    assert both.token_ids[[0, 2]].tolist() == [77, 77]
    assert both.token_ids[4] == 0
    others = [1, 3, 5]  # no row changes its neighbours' path
    assert torch.equal(both.token_ids[others], native.token_ids[others])
    ((given, top_k, top_p),) = calls
    assert top_k.tolist() == [5, VOCAB_SIZE, 9]
    assert top_p.tolist() == pytest.approx([1.0, 0.9, 1.0])
    assert torch.allclose(given[0], (logits[0] - logits[0].max()) / 0.5, atol=1e-5)
    biased = logits[2].clone()
    biased[3] += 50.0
    gaps = biased - biased.max()
    wanted = gaps.where(gaps >= np.log(0.2), -torch.inf)
    assert torch.allclose(given[1], wanted, atol=1e-5)
    assert given[2].isfinite().all()


def gpu_sampler(
    wishes: list[dict[str, Any]], vocab_size: int, config: SamplerConfig | None = None
) -> tuple[Sampler, SamplingBatch]:
    device = torch.device("cuda")
    if (reason := obstacle(device)) is not None:
        pytest.skip(reason)
    batch, rows = make_batch(wishes, device, vocab_size)
    return Sampler(config or SamplerConfig(flashinfer="always"), rows), batch


@pytest.mark.gpu
def test_the_environment_chooses_who_draws() -> None:
    config = config_on(torch.device("cuda"))
    sampler, batch = gpu_sampler([{"top_k": 5}, {"top_k": 5, "seed": 1}], 1000, config)
    sampler(torch.randn(2, 1000, device="cuda"), batch)
    elsewhere = 1 if config.flashinfer == "always" else 0
    assert sampler.rows_by_path == {"native": 2 - elsewhere, "flashinfer": elsewhere, "greedy": 0}


@pytest.mark.gpu
def test_rows_beside_flashinfers_are_drawn_as_without_it() -> None:
    wishes: list[dict[str, Any]] = [
        {"top_k": 50},
        {"top_k": 50, "seed": 1},
        {},
        {"top_p": 0.9, "logit_bias": {3: 5.0}},
        {"temperature": 0.0},
        {"top_k": 20, "logprobs": 2, "logprobs_mode": "processed_logprobs"},
    ]
    logits = torch.randn(len(wishes), 5000, device="cuda")
    drawn = []
    for use in ("never", "always"):
        sampler, batch = gpu_sampler(wishes, 5000, SamplerConfig(flashinfer=use))
        drawn.append(sampler(logits, batch).token_ids[[1, 2, 4, 5]])
    assert sampler.rows_by_path == {"native": 3, "flashinfer": 2, "greedy": 1}
    assert torch.equal(*drawn)


@pytest.mark.gpu
def test_its_frequencies_are_those_of_top_k_then_top_p() -> None:
    """Chi-square at false-alarm odds of 1e-6."""
    num_draws, vocab_size = 4096 * 64, 1000
    sampler, batch = gpu_sampler([{"top_k": 20, "top_p": 0.8}] * 4096, vocab_size)
    row = torch.randn(vocab_size, generator=torch.Generator().manual_seed(3)) * 2
    logits = row.cuda().expand(4096, -1).contiguous()
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for _ in range(num_draws // 4096):
        token_ids = sampler(logits, batch).token_ids.cpu().long()
        counts += torch.bincount(token_ids, minlength=vocab_size)
    order = row.double().argsort(descending=True)
    p = row.double()[order[:20]].softmax(0)
    kept = int((p.cumsum(0) - p < 0.8).sum())
    expected = torch.zeros(vocab_size, dtype=torch.float64)
    expected[order[:kept]] = p[:kept] / p[:kept].sum()
    outcome = chi_square(counts, expected, odds=1e-6)
    assert outcome.p_value > 1e-6, outcome
    assert sampler.rows_by_path["flashinfer"] == num_draws
