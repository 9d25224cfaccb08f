"""Adapters as PEFT saves them, and what a model is once they are merged into it, in float64."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel


def linear_modules(model: PreTrainedModel) -> dict[str, torch.nn.Linear]:
    """The linear modules of a model's layers, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and ".layers." in name
    }


def write_adapter(
    model: PreTrainedModel,
    folder: Path,
    seed: int = 0,
    *,
    rank: int = 4,
    is_wanted: Callable[[str], bool] = lambda name: True,
    change: Callable[[dict[str, torch.Tensor]], None] = lambda tensors: None,
    ranks: dict[str, int] | None = None,
    **fields: Any,
) -> PreTrainedModel:
    """Write a random adapter of a model's linear modules; returns the model merged with it.

    Args:
        ranks: of modules whose names end so, as a `rank_pattern` says.
        change: of the tensors before they are written.
        fields: of adapter_config.json; `alpha_pattern` and `use_rslora` are honored in the merge.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    merged, tensors = copy.deepcopy(model), {}
    alpha, alphas = fields.get("lora_alpha", 2 * rank), fields.get("alpha_pattern", {})
    modules = {n: m for n, m in linear_modules(merged).items() if is_wanted(n)}
    for name, module in modules.items():
        last = name.rpartition(".")[2]
        own, own_alpha = (ranks or {}).get(last, rank), alphas.get(last, alpha)
        a = torch.randn((own, module.in_features), generator=generator) * module.in_features**-0.5
        b = torch.randn((module.out_features, own), generator=generator) * own**-0.5
        scale = own_alpha / (math.sqrt(own) if fields.get("use_rslora") else own)
        delta = scale * (b.double() @ a.double())
        with torch.no_grad():
            module.weight.copy_(module.weight.double() + delta)
        tensors[f"base_model.model.{name}.lora_A.weight"] = a
        tensors[f"base_model.model.{name}.lora_B.weight"] = b
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")
    targets = sorted({name.rpartition(".")[2] for name in modules})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": targets,
        "rank_pattern": ranks or {},
        "bias": "none",
        "base_model_name_or_path": "some/base",
        **fields,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return merged
