"""Which schemes are read of which modules, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.errors import ModelError
from engine.models.formats.config import quantization
from engine.models.formats.scheme import Quantization
from tests.engine.models.formats.int4_schemes import AWQ, GPTQ
from tests.engine.models.formats.packers import (
    Tensors,
    awq,
    gptq,
    rewrite,
    round_weight,
    write_quantized,
)
from tests.engine.models.serving import load

PATH = Path("model/config.json")
FP8_WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
TOKENS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
INT4_WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}


def read(**config: Any) -> Quantization:
    found = quantization({"quantization_config": config}, PATH)
    assert found is not None
    return found


def compressed(*groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    named = {f"group_{index}": {"targets": ["Linear"]} | g for index, g in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, **fields}


def test_a_model_that_is_not_quantized() -> None:
    assert quantization({}, PATH) is None


def test_names_and_expressions_are_nearer_than_the_class() -> None:
    fp8 = {"weights": FP8_WEIGHTS, "input_activations": TOKENS, "targets": ["re:.*down_proj"]}
    found = read(
        **compressed(
            {"weights": INT4_WEIGHTS, "format": "pack-quantized"},
            fp8,
            format="mixed-precision",
            ignore=["lm_head", "re:model.layers.3.*"],
        )
    )
    by_name = {
        "model.layers.0.self_attn.q_proj": "packed",
        "model.layers.0.mlp.down_proj": "fp8",
        "model.layers.3.mlp.down_proj": None,
        "lm_head": None,
    }
    for name, storage in by_name.items():
        scheme = found.scheme_of(name)
        assert (scheme.storage if scheme else None) == storage, name


def test_parts_of_names_end_at_dots() -> None:
    found = read(**AWQ, modules_to_not_convert=["mlp.gate", "model.layers.1", "v_proj"])
    for name, is_quantized in {
        "model.layers.0.mlp.gate_proj": True,
        "model.layers.0.mlp.gate": False,
        "model.layers.1.mlp.up_proj": False,
        "model.layers.11.mlp.up_proj": True,
        "model.layers.0.self_attn.v_proj": False,
        "lm_head": False,
    }.items():
        assert (found.scheme_of(name) is not None) == is_quantized, name


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes' is not read"),
        ({"bits": 4}, "quant_method 'unknown'"),
        (GPTQ | {"bits": 3}, r"quantization_config\.bits 3 is not served \(served: 4\)"),
        (GPTQ | {"group_size": 48}, "group_size 48"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        (GPTQ | {"dynamic": {"+:x": {"bits": 8}}}, "dynamic"),
        (AWQ | {"version": "gemv"}, "version 'gemv'"),
        (AWQ | {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert 'lm_head'"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, r"weight_block_size \[64, 64\]"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt 'e5m2'"),
        ({"quant_method": "fp8", "scale_fmt": "ue8m0"}, "scale_fmt 'ue8m0'"),
        (compressed({"weights": INT4_WEIGHTS | {"num_bits": 8}}), r"weights\.num_bits 8"),
        (compressed({"weights": FP8_WEIGHTS}), r"weights\.num_bits 8"),
        (
            compressed({"weights": FP8_WEIGHTS, "input_activations": TOKENS | {"num_bits": 4}}),
            r"group_0\.input_activations\.num_bits 4",
        ),
        (
            compressed(
                {"weights": FP8_WEIGHTS, "input_activations": TOKENS | {"strategy": "tensor"}}
            ),
            r"input_activations\.strategy 'tensor'",
        ),
        (compressed({"weights": INT4_WEIGHTS, "format": "marlin-24"}), "format 'marlin-24'"),
        ({"quant_method": "compressed-tensors"}, "config_groups None"),
        (compressed() | {"config_groups": {"group_0": None}}, r"config_groups\.group_0 None"),
        (compressed(ignore=["re:("]), r"ignore \['re:\('\]"),
        (AWQ | {"modules_to_not_convert": ["x["]}, "modules_to_not_convert"),
        (compressed(sparsity_config="2:4"), "sparsity_config '2:4'"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size 128"),
    ],
)
def test_schemes_that_are_not_read(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        quantization({"quantization_config": config}, PATH)
    assert "\n" not in str(error.value)
    assert "model/config.json: quantization_config" in str(error.value)


ODD: tuple[Any, ...] = (None, True, -1, 3.5, "x", "(", [], [3], ["("], {}, {"x": 1})


@pytest.mark.parametrize(
    "config",
    [
        AWQ | {"modules_to_not_convert": ["gate"]},
        GPTQ | {"checkpoint_format": "gptq", "lm_head": False, "dynamic": {}},
        {"quant_method": "fp8", "weight_block_size": [128, 128], "ignored_layers": ["x"]},
        {"quant_method": "fp8", "activation_scheme": "static", "fmt": "e4m3"},
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
        compressed({"weights": INT4_WEIGHTS, "format": "pack-quantized"}, ignore=["lm_head"]),
        compressed({"weights": FP8_WEIGHTS, "input_activations": TOKENS}, kv_cache_scheme={}),
    ],
)
def test_odd_values_are_read_or_refused_in_one_line(config: dict[str, Any]) -> None:
    """Each value of the config and of the objects in it, replaced by what has no place there."""
    refusals = [refusal(changed) for changed in changes_of(config)]
    assert not any("\n" in message for message in refusals)
    assert "" in refusals
    assert any(str(PATH) in message for message in refusals)


def refusal(config: Any) -> str:
    """The error of a `quantization_config`; "" where it is read, and schemes are found by it."""
    try:
        found = quantization({"quantization_config": config}, PATH)
    except ModelError as error:
        return str(error)
    if found is not None:
        found.scheme_of("model.layers.0.mlp.up_proj")
    return ""


def changes_of(content: Any) -> Iterator[Any]:
    yield from ODD
    if isinstance(content, dict):
        for key, value in content.items():
            yield from (content | {key: changed} for changed in changes_of(value))


def awq_module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    rounded = round_weight(weight, 32, symmetric=False)
    return awq(rounded), rounded.values()


def gptq_module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    rounded = round_weight(weight, 32, symmetric=False)
    return gptq(rounded), rounded.values()


def fp8_module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    return {"weight": weight.to(torch.float8_e4m3fn), "weight_scale": torch.ones(1)}, weight


def blocks_module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    values = weight.to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale_inv": torch.ones(1, 1)}, weight


BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
Q = "model.layers.1.self_attn.q_proj"
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
Module = Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]


@pytest.mark.parametrize(
    ("config", "module", "name", "tensor", "message"),
    [
        (AWQ, awq_module, "scales", None, r"model\.safetensors: tensor .* is missing, which"),
        (AWQ, awq_module, "scales", torch.ones(3, 64), r"has shape \[3, 64\].*asks for \[2, 64\]"),
        (AWQ, awq_module, "qzeros", torch.ones(2, 8), "is torch.float32.*torch.int32"),
        (AWQ, awq_module, "scales", torch.full((2, 64), torch.inf), "not finite"),
        (GPTQ, gptq_module, "g_idx", torch.zeros(64).int(), "g_idx.* does not give each group"),
        (AWQ, awq_module, "qzeros", None, "qzeros' is missing.*; write the checkpoint anew or"),
        (AWQ, awq_module, "qweight", None, "qweight' is missing"),
        (FP8, fp8_module, "weight_scale", None, "weight_scale.* is missing"),
        (BLOCKS, blocks_module, "weight_scale_inv", None, "weight_scale_inv' is missing"),
        (BLOCKS, blocks_module, "weight_scale_inv", torch.ones(2, 1), r"has shape \[2, 1\]"),
        (FP8, fp8_module, "weight_scale", torch.ones(7), r"has shape \[7\]"),
        (FP8 | {"activation_scheme": "static"}, fp8_module, None, None, "input_scale.* is missing"),
        (FP8, fp8_module, "q_bits", torch.ones(1), "has no place"),
        (FP8 | {"ignored_layers": [Q]}, fp8_module, None, None, "stored as F8_E4M3.*not quantized"),
    ],
)
def test_tensors_that_are_not_as_the_scheme_says(
    config: dict[str, Any],
    module: Module,
    name: str | None,
    tensor: torch.Tensor | None,
    message: str,
    tmp_path: Path,
) -> None:
    write_quantized(tmp_path, config, module)
    tensors = load_file(tmp_path / "model.safetensors")
    if name is not None:
        tensors.pop(f"{Q}.{name}", None)
        if tensor is not None:
            tensors[f"{Q}.{name}"] = tensor
    rewrite(tmp_path, tensors, None)
    with pytest.raises(ModelError, match=message) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)
    assert "; " in str(error.value), "what to do about it"
    assert str(tmp_path) in str(error.value)
    assert name is None or name in str(error.value)


@pytest.mark.parametrize("name", ["weight_scale", "input_scale", "q_bits"])
def test_files_of_tensors_are_named(name: str, tmp_path: Path) -> None:
    """Also of one that is missing: where its module's weight is."""
    write_quantized(tmp_path, FP8 | {"activation_scheme": "static"}, fp8_module)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop(f"{Q}.{name}", None)
    for module in [each.removesuffix(".weight_scale") for each in tensors if "_scale" in each]:
        tensors[f"{module}.input_scale"] = torch.ones(1)
    tensors[f"{Q}.q_bits"] = torch.ones(1)
    if name != "q_bits":
        tensors.pop(f"{Q}.{name}", None)
    rewrite(tmp_path, tensors, None)
    with pytest.raises(ModelError, match=rf"{tmp_path}/model\.safetensors: tensor '{Q}\.{name}'"):
        load(tmp_path)


@pytest.mark.parametrize("found", [[3], "awq"])
def test_a_quantization_that_is_no_object(found: Any, tmp_path: Path) -> None:
    """Before transformers trips over it."""
    write_quantized(tmp_path, AWQ, awq_module)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": found}))
    with pytest.raises(ModelError, match=r"config\.json: quantization_config .* is no object; "):
        load(tmp_path)


def test_only_the_fused_decoder_reads_them(tmp_path: Path) -> None:
    write_quantized(tmp_path, AWQ, awq_module)
    with pytest.raises(
        ModelError, match=r"quantized weights \(awq\) are read by the fused decoder"
    ):
        load(tmp_path, model_impl="transformers")


def test_what_is_rounded_is_not_rounded_again(tmp_path: Path) -> None:
    write_quantized(tmp_path, AWQ, awq_module)
    with pytest.raises(ModelError, match=r"--quantization fp8 rounds .* is \(awq\); leave it out"):
        load(tmp_path, quantization="fp8")
