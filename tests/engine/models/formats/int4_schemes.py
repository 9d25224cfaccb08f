"""Weights in 4 bits as tools describe, order and pack them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers as hf

from tests.engine.models.formats.packers import WIDE, Quantized, Tensors, round_weight

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def activation_order(key: str, num_inputs: int) -> np.ndarray:
    """Inputs in the order of some activations, the same for the same key."""
    return np.random.default_rng([*key.encode(), num_inputs]).permutation(num_inputs)


def packed_scheme(group: int, symmetric: bool) -> Any:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    strategy = "channel" if group == -1 else "group"
    args = {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": strategy}
    if group != -1:
        args["group_size"] = group
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))


def packed_by(
    scheme: Any, group: int, symmetric: bool
) -> Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]:
    """What rounds a weight to the scheme of `packed_scheme`: its tensors, and their values."""
    from compressed_tensors.compressors import PackedQuantizationCompressor

    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rounded = round_weight(weight, group, symmetric=symmetric)
        given = {"weight": weight, "weight_scale": torch.from_numpy(rounded.scales).float()}
        if not symmetric:
            given["weight_zero_point"] = torch.from_numpy(rounded.zeros - 8).to(torch.int8)
        stored = PackedQuantizationCompressor.compress(given, scheme)
        values = PackedQuantizationCompressor.decompress(stored, scheme)["weight"]
        return stored, values

    return module


ORDERED = hf.MixtralConfig(**WIDE, num_local_experts=5, num_experts_per_tok=2)
"""Inputs of all products are whole groups."""


def in_order(name: str, weight: torch.Tensor) -> Quantized:
    """Rounded in the order of activations, which gate and up of an expert share."""
    key = name if name.endswith("w2") else name.rsplit(".", 1)[0]
    order = activation_order(key, weight.shape[1])
    return round_weight(weight, 32, symmetric=False, order=order)
