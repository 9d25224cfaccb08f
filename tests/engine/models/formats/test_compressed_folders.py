"""Folders that compressed-tensors quantised and wrote, its config included, beside its own run.

Its run rounds inputs of products, keys and values as the checkpoint says. As in
`test_fp8_checkpoints`, a number that lies within float32's error of the middle of two float8
numbers may round the other way, which moves its row from there on: half of all positions must
agree. Weight-only schemes agree everywhere.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import ModelConfig
from engine.models.kv_scales import stored_kv_scales
from engine.startup.kv_scales import kv_scales
from tests.engine.models.formats.compressed import (
    BY_CHANNEL,
    BY_GROUP,
    BY_TENSOR,
    FLOAT8,
    MODELS,
    write_compressed,
)
from tests.engine.models.serving import load, serve, some_ids

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", MODELS)
def test_four_bits(name: str, tmp_path: Path) -> None:
    wanted = write_compressed(MODELS[name], BY_GROUP, "pack-quantized", None, tmp_path)
    torch.testing.assert_close(serve(load(tmp_path), some_ids()), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("strategy", ["tensor", "attn_head", None])
@pytest.mark.parametrize("inputs", ["by token", "by tensor"])
@pytest.mark.parametrize("name", MODELS)
def test_float8(name: str, inputs: str, strategy: str | None, tmp_path: Path) -> None:
    """With float8 keys and values too, one scale a layer or one a head."""
    scheme = BY_CHANNEL if inputs == "by token" else BY_TENSOR
    kv = None if strategy is None else FLOAT8 | {"strategy": strategy, "dynamic": False}
    wanted = write_compressed(MODELS[name], scheme, "float-quantized", kv, tmp_path)
    model, scales = load(tmp_path), None
    if kv is not None:
        config = ModelConfig(model=str(tmp_path))
        stored = stored_kv_scales(config, model.attention_specs, CPU)
        scales = kv_scales(model, CPU, 4, 128, stored)
    error = (serve(model, some_ids(), scales=scales) - wanted).abs().amax(-1)
    assert (error < 1e-4).double().mean() > 0.5
    if kv is not None:
        whole = (serve(model, some_ids()) - wanted).abs().amax(-1)
        assert (whole < 1e-4).double().mean() < 0.1, "keys are rounded and cut off"
