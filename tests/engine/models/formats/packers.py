"""Checkpoints as the tools of quantisation write them, by code that shares none with the reader.

GPTQ as `auto_gptq.nn_modules.qlinear.qlinear_cuda.QuantLinear.pack` writes it, AWQ as AutoAWQ's
`WQLinear_GEMM.from_linear` does; both word by word, in numpy. `test_packers` compares them with
those tools' own code where it is installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, PreTrainedConfig

from tests.engine.models.serving import SIZES, write_tiny

Tensors = dict[str, torch.Tensor]
AWQ_PLACES = [0, 2, 4, 6, 1, 3, 5, 7]
WIDE = {**SIZES, "hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 2}
RAGGED = {**SIZES, "hidden_size": 160, "intermediate_size": 200, "num_key_value_heads": 2}
"""Sizes that 128 does not divide."""


class Quantized(NamedTuple):
    """Numbers of a weight [out, in]: (q - zeros[group]) * scales[group], groups by input.

    q [out, in], scales and zeros [out, groups], groups [in].
    """

    q: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    groups: np.ndarray

    def values(self) -> torch.Tensor:
        """The weight, in float64 before it is rounded once."""
        spread = self.scales[:, self.groups].astype(np.float64)
        return torch.from_numpy((self.q - self.zeros[:, self.groups]) * spread).float()


def round_weight(
    weight: torch.Tensor, group: int, *, symmetric: bool, order: np.ndarray | None = None
) -> Quantized:
    """Round a weight to 4 bits; `order` sorts its inputs before they are put into groups."""
    wide = weight.double().numpy()
    num_inputs = wide.shape[1]
    group = num_inputs if group == -1 else group
    groups = np.arange(num_inputs) // group
    if order is not None:
        groups = groups[np.argsort(order)]
    scales = np.zeros((len(wide), num_inputs // group), np.float16)
    zeros = np.full(scales.shape, 8)
    for index in range(scales.shape[1]):
        part = wide[:, groups == index]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            scales[:, index] = np.abs(part).max(1) / 7.5
        else:
            scales[:, index] = (high - low) / 15
            zeros[:, index] = np.clip(np.round(-low / scales[:, index]), 0, 15)
    spread = scales.astype(np.float64)[:, groups]
    q = np.clip(np.round(wide / spread) + zeros[:, groups], 0, 15).astype(np.int64)
    return Quantized(q, scales, zeros, groups)


def words(rows: list[np.ndarray]) -> np.ndarray:
    """One word of eight nibbles, the first the lowest."""
    word = np.zeros(rows[0].shape, np.uint32)
    for place, row in enumerate(rows):
        word |= row.astype(np.uint32) << np.uint32(4 * place)
    return word.view(np.int32)


def gptq(weight: Quantized, *, version: str = "gptq", has_g_idx: bool = True) -> Tensors:
    """A module of a GPTQ checkpoint; its first version stores zero points less one."""
    q, zeros = weight.q.T, weight.zeros.T - (1 if version == "gptq" else 0)
    qweight = np.stack([words(list(q[i : i + 8])) for i in range(0, len(q), 8)])
    qzeros = np.stack(
        [words([zeros[:, j + p] & 15 for p in range(8)]) for j in range(0, zeros.shape[1], 8)], 1
    )
    tensors = {"qweight": qweight, "qzeros": qzeros, "scales": weight.scales.T.copy()}
    if has_g_idx:
        tensors["g_idx"] = weight.groups.astype(np.int32)
    return {name: torch.from_numpy(np.ascontiguousarray(t)) for name, t in tensors.items()}


def packed(weight: Quantized) -> Tensors:
    """A module of a compressed-tensors checkpoint with zero points and `actorder` "group"."""
    columns = weight.q.reshape(len(weight.q), -1, 8)
    rows = weight.zeros.reshape(-1, 8, weight.zeros.shape[1])
    tensors = {
        "weight_packed": words([columns[..., place] for place in range(8)]),
        "weight_zero_point": words([rows[:, place] for place in range(8)]),
        "weight_scale": weight.scales,
        "weight_g_idx": weight.groups.astype(np.int32),
        "weight_shape": np.array(weight.q.shape),
    }
    return {name: torch.from_numpy(np.ascontiguousarray(t)) for name, t in tensors.items()}


def awq(weight: Quantized) -> Tensors:
    """A module of an AWQ checkpoint, version GEMM."""

    def columns(array: np.ndarray) -> np.ndarray:
        eights = range(0, array.shape[1], 8)
        return np.stack([words([array[:, j + p] for p in AWQ_PLACES]) for j in eights], 1)

    tensors = {"qweight": columns(weight.q.T), "qzeros": columns(weight.zeros.T)}
    tensors["scales"] = weight.scales.T.copy()
    return {name: torch.from_numpy(np.ascontiguousarray(t)) for name, t in tensors.items()}


def write_quantized(
    folder: Path,
    config: dict[str, Any],
    module_tensors: Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]],
    sizes: dict[str, Any] = WIDE,
    model: PreTrainedConfig | None = None,
) -> Any:
    """Write a model whose layers' products are quantised; returns transformers' dequantised one.

    Args:
        config: `quantization_config`.
        module_tensors: from a module's name and weight, its tensors and what they stand for.
        model: None is a Llama of `sizes`.
    """
    reference = write_tiny(model or LlamaConfig(**sizes), folder)
    tensors = load_file(folder / "model.safetensors")
    for name, module in reference.model.layers.named_modules(prefix="model.layers"):
        if isinstance(module, torch.nn.Linear):
            stored, values = module_tensors(name, tensors.pop(f"{name}.weight"))
            tensors |= {f"{name}.{key}": tensor.contiguous() for key, tensor in stored.items()}
            module.weight.data.copy_(values)
    rewrite(folder, tensors, config)
    return reference


ROUTERS = ("gate.weight", "shared_expert_gate.weight", "router.weight")


def write_quantized_experts(
    folder: Path,
    model: PreTrainedConfig,
    config: dict[str, Any],
    module_tensors: Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]],
) -> Any:
    """Write a model with experts as `write_quantized` does, each expert by modules of its own."""
    reference = write_tiny(model, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, weight in list(tensors.items()):
        if not name.startswith("model.layers") or weight.dim() < 2 or name.endswith(ROUTERS):
            continue
        module = name.removesuffix(".weight")
        stored, values = module_tensors(module, tensors.pop(name))
        tensors |= {f"{module}.{key}": tensor.contiguous() for key, tensor in stored.items()}
        place_of(reference, module).copy_(values)
    rewrite(folder, tensors, config)
    return reference


def place_of(reference: Any, module: str) -> torch.Tensor:
    """Where transformers keeps the weight of a module of a checkpoint; it joins all experts."""
    found = re.fullmatch(r"(.*)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)", module)
    if found is None:
        weight: torch.Tensor = reference.get_submodule(module).weight.data
        return weight
    layer, expert, part = found.groups()
    experts = reference.get_submodule(layer).mlp.experts
    if part in ("w2", "down_proj"):
        down: torch.Tensor = experts.down_proj.data[int(expert)]
        return down
    halves: tuple[torch.Tensor, ...] = experts.gate_up_proj.data[int(expert)].chunk(2)
    return halves[0 if part in ("w1", "gate_proj") else 1]


def rewrite(folder: Path, tensors: Tensors, config: dict[str, Any] | None) -> None:
    """Write a folder's tensors anew, and its `quantization_config` where one is given."""
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    if config is not None:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": config}))
