"""Formats of quantized checkpoints for tests: their configs, and their modules from weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.engine.models.formats.packers import Tensors, awq, gptq, round_weight
from tests.engine.models.serving import SIZES

FP8 = torch.float8_e4m3fn
EVEN = {**SIZES, "hidden_size": 128, "intermediate_size": 256}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
SYMMETRIC = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True, "sym": False}
Module = Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]


def by_awq(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    made = round_weight(weight, 32, symmetric=False)
    return awq(made), made.values()


def by_gptq(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    order = np.random.default_rng(weight.shape[1]).permutation(weight.shape[1])
    made = round_weight(weight, 64, symmetric=False, order=order)
    return gptq(made), made.values()


def by_symmetric_gptq(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    made = round_weight(weight, 32, symmetric=True)
    return gptq(made), made.values()


def by_tensor(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().amax() / 448
    values = (weight / scale).to(FP8)
    stored = {"weight": values, "weight_scale": scale[None], "input_scale": torch.tensor(0.03)}
    return stored, values.float() * scale


def by_channel(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    values = (weight / scale).to(FP8)
    return {"weight": values, "weight_scale": scale}, values.float() * scale


def by_block(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().amax() / 448
    values = (weight / scale).to(FP8)
    scales = scale.expand(-(-weight.shape[0] // 128), -(-weight.shape[1] // 128)).contiguous()
    return {"weight": values, "weight_scale_inv": scales}, values.float() * scale


KINDS: dict[str, tuple[dict[str, Any], Module]] = {
    "awq": (AWQ, by_awq),
    "gptq, symmetric": (SYMMETRIC, by_symmetric_gptq),
    "gptq in order of activations": (GPTQ, by_gptq),
    "fp8 by tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, by_tensor),
    "fp8 by channel": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 20.0}, by_channel),
    "fp8 by block": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, by_block),
}
