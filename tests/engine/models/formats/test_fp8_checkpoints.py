"""Float8 checkpoints: logits are those of the scheme, its products made in float64.

Transformers' own model, each product of its layers in float64 over inputs rounded by numpy. Inputs
differ by float32's error, some 2^-20 of themselves; one in 2^16 of them, of the 300,000, lies so
near the middle of two float8 numbers (2^-4 apart) that it rounds the other way. That moves logits
of its position, and of those after it in the row, by some 1e-2, and nothing else. So half of all
positions must agree within 1e-4, where a scale misread moves each.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

from tests.engine.models.formats.float8_scheme import (
    BLOCKS,
    Quantizer,
    assert_same_as_scheme,
    by_blocks,
    by_span,
    by_tensor,
    by_token,
    rounded,
)
from tests.engine.models.formats.packers import RAGGED, WIDE, Tensors, rewrite, write_quantized
from tests.engine.models.serving import SIZES


@pytest.mark.parametrize("method", ["compressed-tensors", "fbgemm_fp8"])
def test_by_channel(method: str, tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        scale = weight.abs().amax(1, keepdim=True) / 448
        values, wide = rounded(weight, scale)
        return {"weight": values, "weight_scale": scale}, wide

    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    inputs = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    config: dict[str, Any] = {"quant_method": method, "config_groups": {"group_0": group}}
    config |= {"format": "float-quantized", "ignore": ["lm_head"]}
    limit = None
    if method == "fbgemm_fp8":
        limit = 1.5
        config = {"quant_method": method, "activation_scale_ub": limit}
    reference = write_quantized(tmp_path, config, module)
    assert_same_as_scheme(tmp_path, reference, lambda name: partial(by_token, largest=limit))


@pytest.mark.parametrize("same_inputs", [True, False])
def test_by_tensor_with_scales_of_inputs(same_inputs: bool, tmp_path: Path) -> None:
    """As AutoFP8 writes them: q, k and v keep the weights' scales they came with."""
    scales = {name: 0.01 * (index + 2) for index, name in enumerate("qkvogud")}

    def input_scale(name: str) -> float:
        short = name.rsplit(".", 1)[-1][0]
        return scales["q" if same_inputs and short in "kv" else short]

    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        scale = weight.abs().amax() / 448
        values, wide = rounded(weight, scale)
        stored = {"weight": values, "weight_scale": scale[None]}
        return stored | {"input_scale": torch.tensor(input_scale(name))}, wide

    config = {"quant_method": "fp8", "activation_scheme": "static"}
    reference = write_quantized(tmp_path, config, module)
    assert_same_as_scheme(tmp_path, reference, lambda name: partial(by_tensor, input_scale(name)))


EVEN = {**SIZES, "hidden_size": 128, "intermediate_size": 256}


def test_by_blocks_as_transformers_writes_them(tmp_path: Path) -> None:
    """Quantized and dequantized by transformers."""
    quantize, dequantize = Fp8Quantize(Quantizer()), Fp8Dequantize(Quantizer())

    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        stored = quantize.convert({"weight": weight})
        assert set(stored) == {"weight", "weight_scale_inv"}
        return stored, dequantize.convert(stored)["weight"]

    reference = write_quantized(tmp_path, BLOCKS, module, EVEN)
    assert_same_as_scheme(tmp_path, reference, lambda name: by_span)


def test_by_blocks_with_ragged_edges(tmp_path: Path) -> None:
    """Blocks of q (160 rows), k and v (80 each) do not line up in their one product."""
    reference = write_quantized(tmp_path, BLOCKS, lambda name, weight: by_blocks(weight), RAGGED)
    assert_same_as_scheme(tmp_path, reference, lambda name: by_span)


def test_scales_of_keys_and_values_are_not_asked_for(tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        scale = weight.abs().amax() / 448
        values, wide = rounded(weight, scale)
        return {"weight": values, "weight_scale": scale}, wide

    config = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    reference = write_quantized(tmp_path, config, module, WIDE)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in ("k_scale", "v_scale", "k_proj.k_scale", "v_proj.output_scale"):
        tensors[f"model.layers.0.self_attn.{name}"] = torch.ones(1)
    rewrite(tmp_path, tensors, None)
    assert_same_as_scheme(tmp_path, reference, lambda name: by_token)
