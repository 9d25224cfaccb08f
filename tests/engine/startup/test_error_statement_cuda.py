"""The statement of error is the same on a GPU as on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch
from transformers import Qwen3Config

from engine.config import CacheConfig, CacheDtype, Device, Dtype, EngineConfig, ModelConfig
from engine.models.loader import load_model
from engine.startup.error_statement import ErrorMeasure
from engine.startup.kv_scales import kv_scales
from tests.engine.models.serving import GROUPED, LENGTH, write_tiny

pytestmark = pytest.mark.gpu

Fp8 = Literal["fp8"]
SIZES = {**GROUPED, "hidden_size": 128, "intermediate_size": 256, "head_dim": 64}


def figures(
    folder: Path, on: Device, dtype: Dtype, quantization: Fp8 | None, kv: CacheDtype
) -> list[float]:
    """Mean KL and the largest gap of a model on a device."""
    device = torch.device(on)
    config = EngineConfig(
        model=ModelConfig(
            model=str(folder),
            device=on,
            dtype=dtype,
            max_model_len=LENGTH,
            quantization=quantization,
        ),
        cache=CacheConfig(dtype=kv),
    )
    measure = ErrorMeasure(config, None)
    model = load_model(config.model, device, reference=measure.reference)
    scales = kv_scales(model, device, 16, LENGTH) if kv == "fp8" else None
    statement = measure.statement(model, device, scales)
    assert statement is not None
    assert statement.mean_kl is not None
    assert statement.max_logprob_gap is not None
    return [statement.mean_kl, statement.max_logprob_gap]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("quantization", "kv"), [("fp8", "auto"), (None, "fp8"), ("fp8", "fp8")])
def test_the_same_as_on_a_cpu(
    quantization: Fp8 | None, kv: CacheDtype, dtype: Dtype, tmp_path: Path
) -> None:
    """Few of float8's roundings fall the other way where sums are in another order, of which tensor
    cores keep about 14 bits; in bfloat16 both models have that dtype's own noise besides. The
    largest gap is one token's and moves with few roundings. A scale of another channel makes the
    figures twenty times as large."""
    write_tiny(Qwen3Config(**SIZES), tmp_path)
    on_gpu = figures(tmp_path, "cuda", dtype, quantization, kv)
    on_cpu = figures(tmp_path, "cpu", dtype, quantization, kv)
    allowed = 0.1 if dtype == "float32" else 0.5
    assert on_gpu[0] == pytest.approx(on_cpu[0], rel=allowed)
    assert on_gpu[1] == pytest.approx(on_cpu[1], rel=0.5)
