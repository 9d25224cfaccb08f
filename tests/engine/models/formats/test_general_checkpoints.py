"""Quantised checkpoints of the families that a table of options describes.

Projections are packed or apart, heads are rotated in part or in pairs of neighbours, so that
channels change places as they are read, and attention may be beside the MLP in one product.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from engine.models.decoder import Decoder
from tests.engine.models.formats.float8_scheme import (
    BLOCKS,
    assert_same_as_scheme,
    by_span,
    by_tensor,
    by_token,
    rounded,
)
from tests.engine.models.formats.general_checkpoints import HALF, MODELS, by_awq
from tests.engine.models.formats.int4_schemes import (
    AWQ,
    GPTQ,
    activation_order,
    packed_by,
    packed_scheme,
)
from tests.engine.models.formats.packers import (
    WIDE,
    Tensors,
    gptq,
    round_weight,
    write_quantized,
)
from tests.engine.models.serving import assert_same_logits, load


@pytest.mark.parametrize("name", MODELS)
def test_every_family(name: str, tmp_path: Path) -> None:
    reference = write_quantized(tmp_path, AWQ, by_awq, model=MODELS[name])
    model = load(tmp_path)
    assert isinstance(model, Decoder)
    assert_same_logits(model, reference)


@pytest.mark.parametrize("name", ["phi", "phi3", "glm4", "cohere"])
def test_gptq_in_order_of_activations(name: str, tmp_path: Path) -> None:
    """Each projection in an order of its own: products of one input stay apart."""

    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        order = activation_order(name, weight.shape[1])
        rounded = round_weight(weight, 32, symmetric=False, order=order)
        return gptq(rounded), rounded.values()

    reference = write_quantized(tmp_path, GPTQ | {"desc_act": True}, module, model=MODELS[name])
    assert_same_logits(load(tmp_path), reference)


@pytest.mark.parametrize("name", ["gemma3", "phi3", "starcoder2"])
def test_compressed_tensors(name: str, tmp_path: Path) -> None:
    from compressed_tensors.quantization import QuantizationConfig

    scheme = packed_scheme(32, True)
    config = QuantizationConfig(
        config_groups={"group_0": scheme}, format="pack-quantized", ignore=["lm_head"]
    ).model_dump(mode="json")
    reference = write_quantized(tmp_path, config, packed_by(scheme, 32, True), model=MODELS[name])
    assert_same_logits(load(tmp_path), reference)


def test_modules_that_are_left_as_they_are(tmp_path: Path) -> None:
    """Values beside quantised queries and keys whose lanes are rotated in pairs."""

    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        kept = "layers.1." in name or name.endswith(("v_proj", "up_proj"))
        return ({"weight": weight}, weight) if kept else by_awq(name, weight)

    config = AWQ | {"modules_to_not_convert": ["model.layers.1", "v_proj", "up_proj"]}
    reference = write_quantized(tmp_path, config, module, model=MODELS["cohere"])
    assert_same_logits(load(tmp_path), reference)


@pytest.mark.parametrize("name", ["gemma2", "phi3", "cohere", "starcoder2"])
def test_float8_by_channel(name: str, tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        scale = weight.abs().amax(1, keepdim=True) / 448
        values, wide = rounded(weight, scale)
        return {"weight": values, "weight_scale": scale}, wide

    config = {"quant_method": "fbgemm_fp8"}
    reference = write_quantized(tmp_path, config, module, model=MODELS[name])
    assert_same_as_scheme(tmp_path, reference, lambda name: by_token)


@pytest.mark.parametrize("name", ["glm", "phi"])
def test_float8_by_tensor(name: str, tmp_path: Path) -> None:
    """Each product's input has a scale of its own."""

    def input_scale(name: str) -> float:
        return 0.01 * (2 + sum(name.rsplit(".", 1)[-1].encode()) % 7)

    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        values, wide = rounded(weight, weight.abs().amax() / 448)
        scales = {"weight_scale": weight.abs().amax() / 448}
        return {"weight": values, "input_scale": torch.tensor(input_scale(name))} | scales, wide

    config = {"quant_method": "fp8", "activation_scheme": "static"}
    reference = write_quantized(tmp_path, config, module, model=MODELS[name])
    assert_same_as_scheme(tmp_path, reference, lambda name: partial(by_tensor, input_scale(name)))


def test_float8_by_blocks(tmp_path: Path) -> None:
    """Blocks of packed projections, of which one has rows of queries, keys and values."""

    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        n = len(weight)
        scales = torch.tensor([[0.01 * (1 + row)] for row in range(-(-n // 128))])
        spread = scales.repeat_interleave(128, 0)[:n]
        values, wide = rounded(weight, spread)
        return {"weight": values, "weight_scale_inv": scales}, wide

    sizes: dict[str, Any] = WIDE | {"intermediate_size": 120}
    model = hf.Phi3Config(**sizes, **HALF)
    reference = write_quantized(tmp_path, BLOCKS, module, model=model)
    assert_same_as_scheme(tmp_path, reference, lambda name: by_span)
