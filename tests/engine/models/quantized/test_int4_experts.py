"""Experts in 4 bits as tools write them: logits are transformers' on the dequantised weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.errors import ModelError
from engine.models.fused.decoder import Decoder
from tests.engine.models.quantized.packers import (
    Tensors,
    awq,
    gptq,
    round_weight,
    write_quantized_experts,
)
from tests.engine.models.quantized.test_fp8_experts import MODELS
from tests.engine.models.quantized.test_int4_checkpoints import (
    AWQ,
    GPTQ,
    activation_order,
    packed_by,
    packed_scheme,
)
from tests.engine.models.serving import assert_same_logits, expected, load, serve, some_ids

NAMES = ["mixtral", "qwen2-moe", "qwen3-moe"]
GROUP = 16
"""Of sizes that divide the tiny experts'; whole channels are a group too."""


@pytest.mark.parametrize("name", NAMES)
def test_awq(name: str, tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rounded = round_weight(weight, -1, symmetric=False)
        return awq(rounded), rounded.values()

    config = AWQ | {"group_size": -1, "modules_to_not_convert": ["gate"]}
    reference = write_quantized_experts(tmp_path, MODELS[name], config, module)
    assert isinstance(load(tmp_path), Decoder)
    assert_same_logits(load(tmp_path), reference)


@pytest.mark.parametrize("name", NAMES)
def test_gptq(name: str, tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rounded = round_weight(weight, -1, symmetric=True)
        return gptq(rounded), rounded.values()

    config = GPTQ | {"group_size": -1, "sym": True}
    reference = write_quantized_experts(tmp_path, MODELS[name], config, module)
    assert_same_logits(load(tmp_path), reference)


@pytest.mark.parametrize("symmetric", [False, True])
def test_compressed_tensors(symmetric: bool, tmp_path: Path) -> None:
    """Packed and unpacked by compressed-tensors."""
    from compressed_tensors.quantization import QuantizationConfig

    scheme = packed_scheme(-1, symmetric)
    config = QuantizationConfig(
        config_groups={"group_0": scheme},
        format="pack-quantized",
        ignore=["lm_head", r"re:.*mlp\.gate$"],
    ).model_dump(mode="json")
    reference = write_quantized_experts(
        tmp_path, MODELS["qwen3-moe"], config, packed_by(scheme, -1, symmetric)
    )
    assert_same_logits(load(tmp_path), reference)


def test_zero_points_off_by_one_are_noticed(tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rounded = round_weight(weight, -1, symmetric=False)
        version = "gptq_v2" if ".experts." in name else "gptq"
        return gptq(rounded, version=version), rounded.values()

    config = GPTQ | {"group_size": -1}
    reference = write_quantized_experts(tmp_path, MODELS["mixtral"], config, module)
    ids = some_ids()
    assert (serve(load(tmp_path), ids) - expected(reference, ids)).abs().max() > 1e-2


def test_the_order_of_activations_is_refused(tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        order = activation_order(name, weight.shape[1]) if weight.shape[1] % 32 == 0 else None
        group = 32 if order is not None else -1
        rounded = round_weight(weight, group, symmetric=False, order=order)
        return gptq(rounded), rounded.values()

    write_quantized_experts(tmp_path, MODELS["mixtral"], GPTQ | {"desc_act": True}, module)
    with pytest.raises(
        ModelError, match=r"safetensors: '.*': experts whose inputs are in the order of act"
    ):
        load(tmp_path)
