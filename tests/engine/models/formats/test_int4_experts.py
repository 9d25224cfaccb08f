"""Experts in 4 bits as tools write them: logits are transformers' on the dequantised weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.errors import ModelError
from engine.models.decoder import Decoder
from tests.engine.models.formats.expert_models import MODELS
from tests.engine.models.formats.int4_schemes import (
    AWQ,
    GPTQ,
    ORDERED,
    in_order,
    packed_by,
    packed_scheme,
)
from tests.engine.models.formats.packers import (
    Quantized,
    Tensors,
    awq,
    gptq,
    packed,
    round_weight,
    write_quantized_experts,
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


@pytest.mark.parametrize("pack", [gptq, packed])
def test_in_order_of_activations(pack: Callable[[Quantized], Tensors], tmp_path: Path) -> None:
    """Expert 3 has none, as one that calibration did not reach."""

    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        plain = round_weight(weight, 32, symmetric=False)
        rounded = plain if ".experts.3." in name else in_order(name, weight)
        return pack(rounded), rounded.values()

    config = GPTQ | {"desc_act": True}
    if pack is packed:
        weights = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group"}
        weights |= {"group_size": 32, "actorder": "group"}
        groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
        config = {"quant_method": "compressed-tensors", "config_groups": groups}
        config |= {"format": "pack-quantized", "ignore": ["lm_head", r"re:.*\.gate$"]}
    reference = write_quantized_experts(tmp_path, ORDERED, config, module)
    assert_same_logits(load(tmp_path), reference)


def test_gate_and_up_in_different_orders_are_refused(tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rounded = in_order(f"{name}.w2" if name.endswith("w3") else name, weight)
        return gptq(rounded), rounded.values()

    write_quantized_experts(tmp_path, ORDERED, GPTQ | {"desc_act": True}, module)
    with pytest.raises(
        ModelError,
        match=r"safetensors: '.*0\.w3': gate and up .* different orders \(desc_act, g_idx",
    ):
        load(tmp_path)
