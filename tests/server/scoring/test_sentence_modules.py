"""What a model's folder says of its embeddings, and what of it is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from server.config import Pooling
from server.scoring.sentence_modules import pooling_of
from tests.server.scoring.sentence_folder import LAST, MEAN, write_dense, write_modules

PLAIN = ["Transformer", "Pooling"]


def test_a_folder_that_says_nothing(tmp_path: Path) -> None:
    assert pooling_of(str(tmp_path)) == Pooling(normalizes=True)
    assert pooling_of("some/model") == Pooling(normalizes=True)


@pytest.mark.parametrize("normalizes", [True, False])
@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        (LAST, "last"),
        (MEAN, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
def test_modes(pooling: dict[str, Any], mode: Any, normalizes: bool, tmp_path: Path) -> None:
    write_modules(tmp_path, PLAIN + ["Normalize"] * normalizes, **pooling)
    assert pooling_of(str(tmp_path)) == Pooling(normalizes=normalizes, mode=mode)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_dense_layers(dtype: torch.dtype, bias: bool, tmp_path: Path) -> None:
    folders = write_modules(tmp_path, [*PLAIN, "Dense", "Dense", "Normalize"], **MEAN)
    torch.manual_seed(0)
    linears = [torch.nn.Linear(4, 6, bias, dtype=dtype), torch.nn.Linear(6, 3, bias, dtype=dtype)]
    names = ["torch.nn.modules.activation.Tanh", "torch.nn.modules.activation.ReLU"]
    for folder, linear, name in zip(folders[2:], linears, names, strict=False):
        write_dense(folder, linear, name)
    pooling = pooling_of(str(tmp_path))
    assert (pooling.refusal, pooling.mode, pooling.normalizes) == (None, "mean", True)
    assert [layer.activation for layer in pooling.layers] == ["tanh", "relu"]
    for layer, linear in zip(pooling.layers, linears, strict=True):
        np.testing.assert_array_equal(layer.weight, linear.weight.detach().float().numpy())
        assert (layer.bias is not None) == bias
        if layer.bias is not None:
            np.testing.assert_array_equal(layer.bias, linear.bias.detach().float().numpy())


@pytest.mark.parametrize(
    ("kinds", "pooling", "words"),
    [
        ([*PLAIN, "LSTM"], LAST, "LSTM"),
        ([*PLAIN, "Normalize", "Dense"], LAST, "in this order"),
        (["Transformer", "Normalize"], LAST, "in this order"),
        (PLAIN, {"pooling_mode_cls_token": True}, "cls_token"),
        (PLAIN, {**MEAN, "pooling_mode_lasttoken": True}, "lasttoken, mean_tokens"),
        (PLAIN, {"pooling_mode": "weightedmean"}, "weightedmean"),
        (PLAIN, {}, "not named"),
        (PLAIN, {**MEAN, "include_prompt": False}, "include_prompt"),
        ([*PLAIN, "Dense"], LAST, "2_Dense/config.json"),
    ],
)
def test_modules_that_are_refused(
    kinds: list[str], pooling: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_modules(tmp_path, kinds, **pooling)
    assert words in (pooling_of(str(tmp_path)).refusal or "")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"activation_function": "torch.nn.modules.activation.GELU"}, "activation.GELU"),
        ({"module_input_name": "token_embeddings"}, "token_embeddings"),
        ({"in_features": 5}, "other shapes"),
        ({"bias": False}, "linear.bias"),
    ],
)
def test_dense_layers_that_are_refused(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = write_modules(tmp_path, [*PLAIN, "Dense"], **LAST)[2]
    write_dense(folder, torch.nn.Linear(4, 6), **config)
    refusal = pooling_of(str(tmp_path)).refusal or ""
    assert words in refusal
    assert "2_Dense" in refusal


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = write_modules(tmp_path, [*PLAIN, "Dense"], **LAST)[2]
    write_dense(folder, torch.nn.Linear(4, 6))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickled weights are not loaded" in (pooling_of(str(tmp_path)).refusal or "")
