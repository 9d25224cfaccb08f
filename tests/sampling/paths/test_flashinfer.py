"""Whether FlashInfer's sampler may draw, for every setting, on devices with and without it."""

from __future__ import annotations

import importlib.util
import logging
import sys
import types
from typing import Any

import pytest
import torch

from engine.config import ConfigError, SamplingConfig
from engine.startup.samplers import make_sampler
from sampling import sampler as sampler_module
from sampling import warm_up
from sampling.params import SamplingParams
from sampling.paths import flashinfer, known_times
from sampling.paths.flashinfer import UnavailableError, choose, obstacle
from sampling.paths.known_times import KnownTimes, Times
from sampling.rows import FLASHINFER, SamplingRows
from sampling.sampler import Sampler, SamplerConfig

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A GPU of compute capability 9.0 with FlashInfer installed, as far as `choose` looks."""
    fake = types.ModuleType("flashinfer")
    fake.sampling = types.SimpleNamespace(  # type: ignore[attr-defined]
        top_k_top_p_sampling_from_logits=lambda *args, **kwargs: None,
        get_sampling_module=lambda: None,
    )
    flashinfer._log_once.cache_clear()
    monkeypatch.setattr(known_times, "_entries", lambda: ())
    monkeypatch.setitem(sys.modules, "flashinfer", fake)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: fake)
    monkeypatch.setattr(torch, "Generator", lambda device: types.SimpleNamespace(seed=lambda: 1))
    return monkeypatch


def make_rows(params: SamplingParams) -> SamplingRows:
    rows = SamplingRows(1, 100, CPU, history=torch.zeros(1, 8, dtype=torch.int32))
    rows.add(0, params, seed=0, choice=0, prompt_len=1, num_tokens=1)
    return rows


def test_the_obstacle_is_named(gpu: pytest.MonkeyPatch) -> None:
    assert obstacle(CUDA) is None
    assert "CUDA" in str(obstacle(CPU))
    gpu.setattr(importlib.util, "find_spec", lambda name: None)
    assert "flashinfer-python" in str(obstacle(CUDA))
    gpu.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "compute capability 7.5" in str(obstacle(CUDA))


def test_it_is_not_loaded_where_it_is_known_to_lose(
    gpu: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entry = KnownTimes("GPU", (9, 0), "0.6.18", "3.6", "2.11", (Times(256, 1000, 0.1, 0.5),))
    gpu.setattr(known_times, "_entries", lambda: (entry,))
    gpu.setattr(known_times, "version", lambda name: f"{getattr(entry, name.split('-')[0])}.post1")
    with caplog.at_level(logging.INFO):
        assert choose("auto", use_fp64_gumbel=False, device=CUDA) is None
    assert "known to be slower" in caplog.text
    assert choose("always", use_fp64_gumbel=False, device=CUDA) is not None
    gpu.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    assert choose("auto", use_fp64_gumbel=False, device=CUDA) is not None


@pytest.mark.parametrize("use", ["auto", "always"])
def test_it_is_chosen_where_it_can_run(gpu: pytest.MonkeyPatch, use: Any) -> None:
    assert choose(use, use_fp64_gumbel=False, device=CUDA) is not None


def test_never_is_logged_once(gpu: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert choose("never", use_fp64_gumbel=False, device=CUDA) is None
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_insisting_where_it_cannot_run_is_an_error(gpu: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError, match="CUDA"):
        choose("always", use_fp64_gumbel=False, device=CPU)
    gpu.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="package flashinfer-python"):
        choose("always", use_fp64_gumbel=False, device=CUDA)
    gpu.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    with pytest.raises(UnavailableError, match=r"compute capability 7\.0"):
        choose("always", use_fp64_gumbel=False, device=CUDA)


def test_insisting_in_vain_is_an_error_at_the_start(gpu: pytest.MonkeyPatch) -> None:
    rows = make_rows(SamplingParams())
    rows.device = CUDA
    gpu.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    wanted = r"TAILRACE_USE_FLASHINFER_SAMPLER=1: .* compute capability 7\.0"
    with pytest.raises(ConfigError, match=wanted):
        make_sampler(SamplingConfig(flashinfer="always"), rows)


def test_kernels_that_cannot_be_loaded(
    gpu: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("no nvcc\nand much more")

    gpu.setattr(sys.modules["flashinfer"].sampling, "get_sampling_module", fail)
    with pytest.raises(UnavailableError, match=r"cannot be loaded: no nvcc$"):
        choose("always", use_fp64_gumbel=False, device=CUDA)
    for _ in range(2):
        assert choose("auto", use_fp64_gumbel=False, device=CUDA) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_auto_warns_once_on_cuda_and_is_silent_on_the_cpu(
    gpu: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.setattr(importlib.util, "find_spec", lambda name: None)
    for _ in range(2):
        assert choose("auto", use_fp64_gumbel=False, device=CUDA) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert choose("auto", use_fp64_gumbel=False, device=CPU) is None
        assert choose("never", use_fp64_gumbel=False, device=CPU) is None
    assert not caplog.records


@pytest.mark.parametrize("use", ["auto", "always", "never"])
def test_the_fp64_promise_excludes_it(gpu: pytest.MonkeyPatch, use: Any) -> None:
    assert choose(use, use_fp64_gumbel=True, device=CUDA) is None


@pytest.mark.parametrize(
    ("wish", "eligible"),
    [
        ({"top_k": 5}, True),
        ({"top_p": 0.9}, True),
        ({"top_k": 5, "min_p": 0.1}, True),
        ({"top_k": 5, "logprobs": 3}, True),
        ({"top_k": 5, "seed": 1}, False),
        ({"min_p": 0.1}, False),
        ({}, False),
        ({"top_k": 5, "temperature": 0.0}, False),
        ({"top_k": 100}, False),  # all of the vocabulary
        ({"top_k": 5, "logprobs": 3, "logprobs_mode": "processed_logprobs"}, False),
    ],
)
def test_which_rows_it_may_draw(wish: dict[str, Any], eligible: bool) -> None:
    rows = make_rows(SamplingParams(**wish))
    assert bool(rows.flags_np[0] & FLASHINFER) == eligible


def test_warm_up_chooses_the_faster(
    gpu: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = make_rows(SamplingParams(top_k=5))
    rows.device = CUDA  # only looked at; nothing is drawn here
    needs = rows.needs(torch.zeros(1, dtype=torch.int32).numpy())
    for times, uses in (((1.0, 2.0), False), ((2.0, 1.0), True)):
        gpu.setattr(warm_up, "time_samplers", lambda *args, times=times: times)
        gpu.setattr(warm_up, "compile_kernels", lambda *args: None)
        sampler = Sampler(SamplerConfig(flashinfer="auto"), rows)
        assert sampler.is_capturable(needs)  # until it is timed, the native sampler draws
        with caplog.at_level(logging.INFO):
            sampler.warm_up(64)
        assert sampler.is_capturable(needs) != uses
        sampler.count(torch.zeros(3, dtype=torch.int32).numpy())
        assert sampler.rows_by_path["flashinfer"] == (3 if uses else 0)
        assert sampler.rows_by_path["native"] == (0 if uses else 3)
    assert "native sampler draws them" in caplog.text
    assert "FlashInfer draws them" in caplog.text


def test_cuda_without_triton_is_an_error(gpu: pytest.MonkeyPatch) -> None:
    rows = make_rows(SamplingParams())
    rows.device = CUDA
    gpu.setattr(sampler_module, "kernels_run_on", lambda device: False)
    with pytest.raises(ValueError, match="triton"):
        Sampler(SamplerConfig(), rows)
