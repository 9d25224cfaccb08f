"""Weights of experts in float8 by tensor, with scales of their inputs."""

from __future__ import annotations

import re

import torch

from tests.engine.models.formats.float8_scheme import rounded
from tests.engine.models.formats.packers import Tensors

STATIC = {"quant_method": "fp8", "activation_scheme": "static"}


def by_tensor(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().amax() / 448
    values, wide = rounded(weight, scale)
    return {"weight": values, "weight_scale": scale}, wide


def input_scale(name: str) -> float:
    """A scale of inputs, another one for each product, by its name in a checkpoint or a model."""
    found = re.search(r"(\d+)\.\w+\.experts\.(\d+)\.(\w+)$", name)
    if found is None:
        return 0.05
    layer, expert, product = found.groups()
    is_second = product in ("w2", "down_proj", "down")
    return 0.01 * (2 + (int(expert) + int(layer)) % 5 + (3 if is_second else 0))


def with_input_scale(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    stored, wide = by_tensor(name, weight)
    return stored | {"input_scale": torch.tensor(input_scale(name))}, wide
