"""4-bit checkpoints as tools write them: logits are transformers' on the dequantised weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.models.decoder import Decoder
from tests.engine.models.formats.int4_schemes import (
    AWQ,
    GPTQ,
    activation_order,
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
    write_quantized,
)
from tests.engine.models.serving import assert_same_logits, expected, load, serve, some_ids


@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group", [32, -1])
def test_gptq(version: str, symmetric: bool, group: int, tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rounded = round_weight(weight, group, symmetric=symmetric)
        return gptq(rounded, version=version, has_g_idx=symmetric), rounded.values()

    config = GPTQ | {"group_size": group, "checkpoint_format": version, "sym": symmetric}
    reference = write_quantized(tmp_path, config, module)
    assert isinstance(load(tmp_path), Decoder)
    assert_same_logits(load(tmp_path), reference)


@pytest.mark.parametrize("shared", [True, False])
def test_gptq_in_order_of_activations(shared: bool, tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        # Calibration orders projections of the same input alike; a tool need not.
        key = name.rsplit(".", 1)[0] if shared else name
        order = activation_order(key, weight.shape[1])
        rounded = round_weight(weight, 32, symmetric=False, order=order)
        return gptq(rounded), rounded.values()

    reference = write_quantized(tmp_path, GPTQ | {"desc_act": True}, module)
    assert_same_logits(load(tmp_path), reference)


def test_gptq_with_biases_the_model_has_not(tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rounded = round_weight(weight, 32, symmetric=False)
        return gptq(rounded) | {"bias": torch.zeros(len(weight)).half()}, rounded.values()

    reference = write_quantized(tmp_path, GPTQ, module)
    assert_same_logits(load(tmp_path), reference)


def test_awq(tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rounded = round_weight(weight, 32, symmetric=False)
        return awq(rounded), rounded.values()

    reference = write_quantized(tmp_path, AWQ, module)
    assert_same_logits(load(tmp_path), reference)


def test_modules_that_are_left_as_they_are(tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        if "layers.1." in name or name.endswith(("v_proj", "down_proj")):
            return {"weight": weight}, weight
        rounded = round_weight(weight, 32, symmetric=False)
        return awq(rounded), rounded.values()

    config = AWQ | {"modules_to_not_convert": ["model.layers.1", "v_proj", "down_proj"]}
    reference = write_quantized(tmp_path, config, module)
    assert_same_logits(load(tmp_path), reference)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group", [32, -1])
def test_compressed_tensors(symmetric: bool, group: int, tmp_path: Path) -> None:
    """Packed and unpacked by compressed-tensors."""
    from compressed_tensors.quantization import QuantizationConfig

    scheme = packed_scheme(group, symmetric)
    config = QuantizationConfig(
        config_groups={"group_0": scheme}, format="pack-quantized", ignore=["lm_head"]
    ).model_dump(mode="json")
    reference = write_quantized(tmp_path, config, packed_by(scheme, group, symmetric))
    assert_same_logits(load(tmp_path), reference)


@pytest.mark.parametrize("is_ordered", [True, False])
def test_compressed_tensors_in_order_of_activations(is_ordered: bool, tmp_path: Path) -> None:
    """As it was written until the scheme was given up; -1 of all inputs says that they are not."""

    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        key = name.rsplit(".", 1)[0]
        order = activation_order(key, weight.shape[1]) if is_ordered else None
        rounded = round_weight(weight, 32, symmetric=False, order=order)
        tensors = packed(rounded)
        if not is_ordered:
            tensors["weight_g_idx"].fill_(-1)
        return tensors, rounded.values()

    weights = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group"}
    group = {"targets": ["Linear"], "weights": weights | {"group_size": 32, "actorder": "group"}}
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    reference = write_quantized(tmp_path, config | {"format": "pack-quantized"}, module)
    assert_same_logits(load(tmp_path), reference)


def test_what_is_packed_here_is_what_compressed_tensors_packs() -> None:
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(4))
    theirs, _ = packed_by(packed_scheme(32, False), 32, False)("up_proj", weight)
    ours = packed(round_weight(weight, 32, symmetric=False))
    for name, tensor in theirs.items():
        assert torch.equal(ours[name].to(tensor.dtype), tensor), name


def test_zero_points_off_by_one_are_noticed(tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rounded = round_weight(weight, 32, symmetric=False)
        return gptq(rounded, version="gptq_v2"), rounded.values()

    reference, ids = write_quantized(tmp_path, GPTQ, module), some_ids()
    assert (serve(load(tmp_path), ids) - expected(reference, ids)).abs().max() > 1e-2


def test_the_numbers_of_a_rounded_weight() -> None:
    rounded = Quantized(
        np.array([[0, 15]]), np.array([[0.5]], np.float16), np.array([[8]]), np.array([0, 0])
    )
    assert rounded.values().tolist() == [[-4.0, 3.5]]


def one_signed(weight: torch.Tensor) -> torch.Tensor:
    """The weight with rows of one sign, whose zero points are 0 and 15, among its own."""
    signed = weight.clone()
    signed[0::3], signed[1::3] = weight[0::3].abs(), -weight[1::3].abs()
    return signed


@pytest.mark.parametrize("kind", ["gptq", "gptq_v2", "awq"])
def test_zero_points_at_both_ends_of_the_code(kind: str, tmp_path: Path) -> None:
    """GPTQ's first version stores 0 as 15, one less in four bits."""
    seen: set[int] = set()

    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rounded = round_weight(one_signed(weight), 32, symmetric=False)
        seen.update(rounded.zeros.flatten().tolist())
        if kind == "awq":
            return awq(rounded), rounded.values()
        return gptq(rounded, version=kind), rounded.values()

    config = AWQ if kind == "awq" else GPTQ | {"checkpoint_format": kind}
    reference = write_quantized(tmp_path, config, module)
    assert {0, 15} <= seen
    assert_same_logits(load(tmp_path), reference)
