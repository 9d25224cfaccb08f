"""Quantized models that ranks divide, for tests."""

from __future__ import annotations

from typing import Any

import torch

from tests.engine.models.families.shard_models import (
    WIDE,
)
from tests.engine.models.formats.float8_scheme import BLOCKS
from tests.engine.models.formats.general_checkpoints import by_awq
from tests.engine.models.formats.int4_schemes import AWQ, GPTQ
from tests.engine.models.formats.packers import Tensors, gptq, round_weight

QUANTIZED = {**WIDE, "hidden_size": 64, "intermediate_size": 128}


def by_gptq(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    rounded = round_weight(weight, 32, symmetric=False)
    return gptq(rounded), rounded.values()


def by_tensor(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().amax() / 448
    values = (weight / scale).to(torch.float8_e4m3fn)
    stored = {"weight": values, "weight_scale": scale[None], "input_scale": torch.tensor(0.03)}
    return stored, values.float() * scale


def by_blocks(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    n, k = weight.shape
    scales = weight.abs().amax() / 448 * (1 + torch.arange(-(-n // 128) * -(-k // 128)) % 3)
    scales = scales.view(-(-n // 128), -1)
    spread = scales.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    values = (weight / spread).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale_inv": scales}, values.float() * spread


SCHEMES: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "gptq": (GPTQ, by_gptq, QUANTIZED),
    "awq": (AWQ, by_awq, QUANTIZED),
    "fp8 by tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, by_tensor, QUANTIZED),
    "fp8 by blocks": (BLOCKS, by_blocks, QUANTIZED | {"head_dim": 64, "intermediate_size": 384}),
}
"""Of 384 columns one rank has two blocks, the other one."""
