"""Adapters as PEFT saves them, and what a model is once they are merged into it, in float64."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from engine.contracts.adapters import AdapterSource

STACKED = ("gate_up_proj", "up_proj", "down_proj")
"""Tensors of all experts of a layer, in the order in which their module has them."""
ENDS = ("model.embed_tokens", "lm_head")


def linear_modules(model: PreTrainedModel) -> dict[str, torch.nn.Linear]:
    """The linear modules of a model's layers, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and ".layers." in name
    }


def source_of(folder: Path) -> AdapterSource:
    """The adapter of a folder."""
    return AdapterSource(str(folder))


class Writer:
    """Random factors of an adapter, which are added to a model's weights as they are made."""

    def __init__(self, seed: int, rank: int, alpha: float, fields: dict[str, Any]) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._rank, self._alpha, self._fields = rank, alpha, fields
        self.tensors: dict[str, torch.Tensor] = {}

    def factors(
        self, last: str, outputs: int, inputs: int, ranks: dict[str, int]
    ) -> tuple[torch.Tensor, torch.Tensor, float]:
        """A, B and the scale of a module with a last name."""
        own = ranks.get(last, self._rank)
        alpha = self._fields.get("alpha_pattern", {}).get(last, self._alpha)
        a = torch.randn((own, inputs), generator=self._generator) * inputs**-0.5
        b = torch.randn((outputs, own), generator=self._generator) * own**-0.5
        return a, b, alpha / (math.sqrt(own) if self._fields.get("use_rslora") else own)

    def add(self, module: torch.nn.Linear, name: str, ranks: dict[str, int]) -> None:
        """Write the adapter of a linear module."""
        outputs, inputs = module.weight.shape
        a, b, scale = self.factors(name.rpartition(".")[2], outputs, inputs, ranks)
        merge(module.weight, scale * (b.double() @ a.double()))
        self.tensors[f"base_model.model.{name}.lora_A.weight"] = a
        self.tensors[f"base_model.model.{name}.lora_B.weight"] = b

    def add_embedding(self, module: torch.nn.Embedding, name: str) -> None:
        """Write the adapter of an embedding, and the base's weight beside it as PEFT does."""
        vocab, hidden = module.weight.shape
        self.tensors[f"base_model.model.{name}.base_layer.weight"] = module.weight.clone()
        a, b, scale = self.factors("embed_tokens", hidden, vocab, {})
        merge(module.weight, scale * (b.double() @ a.double()).t())
        self.tensors[f"base_model.model.{name}.lora_embedding_A"] = a
        self.tensors[f"base_model.model.{name}.lora_embedding_B"] = b

    def add_stacked(self, module: Any, name: str, parameters: Sequence[str]) -> None:
        """Write the adapters of tensors [experts, out, in] of a module, or [experts, in, out]."""
        wrapped = name + ".base_layer" * (len(parameters) - 1)
        for parameter in parameters:
            weight = getattr(module, parameter)
            is_transposed = getattr(module, "is_transposed", False)
            count, outputs, inputs = weight.shape
            if is_transposed:
                outputs, inputs = inputs, outputs
            all_a, all_b = [], []
            for expert in range(count):
                a, b, scale = self.factors(parameter, outputs, inputs, {})
                delta = scale * (b.double() @ a.double())
                merge(weight[expert], delta.t() if is_transposed else delta)
                all_a.append(a)
                all_b.append(b)
            # PEFT's ParamWrapper: [experts * r, in], and [out, r * experts] with experts last.
            prefix = f"base_model.model.{wrapped}"
            self.tensors[f"{prefix}.lora_A.weight"] = torch.cat(all_a)
            self.tensors[f"{prefix}.lora_B.weight"] = torch.stack(all_b, -1).flatten(1)
            wrapped = wrapped.removesuffix(".base_layer")


def merge(weight: torch.Tensor, delta: torch.Tensor) -> None:
    with torch.no_grad():
        weight.copy_(weight.double() + delta)


def stacked_modules(model: PreTrainedModel) -> dict[str, tuple[Any, list[str]]]:
    """The modules of a model that hold all experts in tensors, and the names of these."""
    found = {}
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        parameters = [each for each in STACKED if each in own and own[each].dim() == 3]
        if parameters:
            found[name] = module, parameters
    return found


def untie(model: PreTrainedModel) -> None:
    """Give a tied head a weight of its own, which an adapter of one does not change in both."""
    head = model.get_output_embeddings()
    if head is not None and head.weight is model.get_input_embeddings().weight:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())


def write_adapter(
    model: PreTrainedModel,
    folder: Path,
    seed: int = 0,
    *,
    rank: int = 4,
    is_wanted: Callable[[str], bool] = lambda name: True,
    change: Callable[[dict[str, torch.Tensor]], None] = lambda tensors: None,
    ranks: dict[str, int] | None = None,
    ends: Sequence[str] = (),
    experts: bool = False,
    **fields: Any,
) -> PreTrainedModel:
    """Write a random adapter of a model's linear modules; returns the model merged with it.

    Args:
        ranks: of modules whose names end so, as a `rank_pattern` says.
        change: of the tensors before they are written.
        ends: of `ENDS`, those that are adapted too.
        experts: tensors that hold all experts are adapted too.
        fields: of adapter_config.json; `alpha_pattern` and `use_rslora` are honored in the merge.
    """
    folder.mkdir(parents=True, exist_ok=True)
    merged = copy.deepcopy(model)
    alpha = fields.get("lora_alpha", 2 * rank)
    writer = Writer(seed, rank, alpha, fields)
    modules = {n: m for n, m in linear_modules(merged).items() if is_wanted(n)}
    for name, module in modules.items():
        writer.add(module, name, ranks or {})
    targets = {name.rpartition(".")[2] for name in modules}
    parameters: set[str] = set()
    for name, (holder, own) in (stacked_modules(merged) if experts else {}).items():
        writer.add_stacked(holder, name, own)
        parameters |= {f"experts.{parameter}" for parameter in own}
    if ends:
        untie(merged)
    if ENDS[0] in ends:
        writer.add_embedding(merged.get_input_embeddings(), ENDS[0])
    if ENDS[1] in ends:
        writer.add(merged.get_output_embeddings(), ENDS[1], {})
    targets |= {end.rpartition(".")[2] for end in ends}
    change(writer.tensors)
    save_file(writer.tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted(targets),
        "target_parameters": sorted(parameters) or None,
        "rank_pattern": ranks or {},
        "bias": "none",
        "base_model_name_or_path": "some/base",
        **fields,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return merged
