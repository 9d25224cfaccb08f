"""What a PEFT adapter's `adapter_config.json` asks for. What is not served is refused by name.

Names and rules are those of PEFT's `LoraConfig` (huggingface/peft, `tuners/lora/config.py`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from engine.errors import AdapterError

CONFIG = "adapter_config.json"
MERGE = "merge it into its base (PEFT's merge_and_unload) and serve that as a model"

REFUSED = {
    "use_dora": "DoRA",
    "lora_bias": "biases of B",
    "modules_to_save": "whole modules",
    "layer_replication": "replicated layers",
    "alora_invocation_tokens": "activated LoRA",
    "trainable_token_indices": "trained tokens",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
    "arrow_config": "Arrow",
    "velora_config": "VeLoRA",
    "monteclora_config": "MonteCLoRA",
}
"""Fields that change what an adapter computes, and what they ask for; served where empty."""
INITIALIZED_OTHERWISE = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Beginnings of `init_lora_weights` after which a base is no longer the one that is served."""
TASKS = (None, "CAUSAL_LM", "FEATURE_EXTRACTION")

T = TypeVar("T")


@dataclass(frozen=True)
class AdapterConfig:
    """An adapter's configuration.

    Attributes:
        path: of the file, for errors.
        targets: names of modules or ends of such names, or one expression for whole names; None
            for all linear modules.
        excluded: as `targets`; empty for none.
        parameters: names of parameters or ends of such names, such as of tensors that hold all
            experts; they are besides `targets`.
        ties_head: adapters of embeddings change a head that is tied to them.
        ranks, alphas: those of modules whose names match an expression, the first that does.
    """

    path: Path
    rank: int
    alpha: float
    is_rank_stabilized: bool
    targets: str | tuple[str, ...] | None
    excluded: str | tuple[str, ...]
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    parameters: tuple[str, ...] = ()
    ties_head: bool = False

    def rank_of(self, module: str) -> int:
        """The rank of a module's adapter."""
        return _first_match(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        """The factor of B A: alpha / r, or of rsLoRA alpha / sqrt(r) (arXiv 2312.03732)."""
        rank, alpha = self.rank_of(module), _first_match(self.alphas, module, self.alpha)
        return alpha / math.sqrt(rank) if self.is_rank_stabilized else alpha / rank

    def check_targets(self, modules: Iterable[str], found: Iterable[str]) -> None:
        """Refuse modules that the targets do not name, and targets without a module.

        Args:
            modules: those that the adapter has tensors of. found: these and parameters.

        Raises:
            AdapterError: the message names the module or target.
        """
        modules = list(modules)
        for module in modules:
            if not self.names_module(module):
                raise AdapterError(
                    f"{self.path.parent}: there are tensors of {module!r}, which target_modules "
                    f"of {CONFIG} does not name; save the adapter anew"
                )
        for target in self.targets if isinstance(self.targets, tuple) else ():
            if not any(matches((target,), module) for module in modules):
                raise AdapterError(
                    f"{self.path}: target_modules names {target!r}, of which there are no tensors "
                    "in the adapter; save it anew"
                )
        found = list(found)
        for name in self.parameters:  # PEFT adds ends of names itself, be there any or not
            if "." in name and not any(
                matches((name.removesuffix(".weight"),), each) for each in found
            ):
                raise AdapterError(
                    f"{self.path}: target_parameters names {name!r}, of which there are no tensors "
                    "in the adapter; save it anew"
                )

    def names_module(self, module: str) -> bool:
        """Whether `target_modules` names a module."""
        if self.excluded and matches(self.excluded, module):
            return False
        if self.targets is None:  # what holds all experts is not linear
            return not module.endswith(".experts")
        return matches(self.targets, module)

    def parameters_of(self, module: str) -> list[str]:
        """The parameters of a module that `target_parameters` names, as PEFT wraps them in turn."""
        found = set()  # some are named by ends and in full
        for name in self.parameters:
            holder, _, parameter = name.rpartition(".")
            if not holder or matches((holder,), module):
                found.add(parameter)
        return sorted(found, key=lambda each: (_PARAMETERS.get(each, len(_PARAMETERS)), each))


_PARAMETERS = {name: at for at, name in enumerate(("gate_up_proj", "up_proj", "down_proj"))}
"""The order in which modules of experts have their parameters."""


def matches(targets: str | tuple[str, ...], module: str) -> bool:
    """Whether PEFT adapts a module: an expression is of whole names, others are ends at a dot."""
    if isinstance(targets, str):
        return re.fullmatch(targets, module) is not None
    return any(module == target or module.endswith(f".{target}") for target in targets)


def _first_match(pattern: Mapping[str, T], module: str, otherwise: T) -> T:
    """The value of the first expression that matches a name's end, at a dot."""
    for key, value in pattern.items():
        if re.match(rf"(.*\.)?({key})$", module):
            return value
    return otherwise


def read_config(path: Path, text: bytes, max_rank: int) -> AdapterConfig:
    """Read and check the configuration of an adapter.

    Args:
        path: of the file, for errors. text: what is in it.
        max_rank: the largest rank that is served.

    Raises:
        AdapterError: it cannot be served; the message names the field.
    """
    fields = _fields(path, text)
    _check_served(path, fields)
    rank, alpha = fields.get("r", 8), fields.get("lora_alpha", 8)
    ranks = _pattern(path, fields, "rank_pattern")
    alphas = _pattern(path, fields, "alpha_pattern")
    for name, value in (("r", rank), *(("rank_pattern", each) for each in ranks.values())):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise AdapterError(f"{path}: {name} must be a number from 1 on, got {value!r}")
        if value > max_rank:
            raise AdapterError(
                f"{path}: {name} is {value}, and --max-lora-rank is {max_rank}; start the server "
                f"with --max-lora-rank {value}"
            )
    for name, value in (("lora_alpha", alpha), *(("alpha_pattern", v) for v in alphas.values())):
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise AdapterError(f"{path}: {name} must be a number, got {value!r}")
    return AdapterConfig(
        path=path,
        rank=rank,
        alpha=float(alpha),
        is_rank_stabilized=bool(fields.get("use_rslora")),
        targets=_targets(path, fields),
        excluded=_excluded(path, fields),
        ranks=ranks,
        alphas={key: float(value) for key, value in alphas.items()},
        parameters=_parameters(path, fields),
        ties_head=bool(fields.get("ensure_weight_tying")),
    )


def _fields(path: Path, text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise AdapterError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(fields, dict):
        raise AdapterError(f"{path} must hold a JSON object")
    return fields


def _check_served(path: Path, fields: dict[str, Any]) -> None:
    kind = fields.get("peft_type", "LORA")
    if kind != "LORA":
        raise AdapterError(f"{path}: peft_type {kind!r} is not served, only LORA; {MERGE}")
    for name, what in REFUSED.items():
        if fields.get(name):
            raise AdapterError(f"{path}: {name} ({what}) is not served; {MERGE}")
    if (bias := fields.get("bias") or "none") != "none":
        raise AdapterError(f"{path}: bias {bias!r} is not served, only none; {MERGE}")
    if (task := fields.get("task_type")) not in TASKS:
        raise AdapterError(f"{path}: task_type {task!r} is not served, only CAUSAL_LM")
    begun = fields.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(INITIALIZED_OTHERWISE):
        raise AdapterError(
            f"{path}: init_lora_weights {begun!r} changes the base; convert the adapter (PEFT's "
            "path_initial_model_for_weight_conversion), or merge it and serve that as a model"
        )


def _targets(path: Path, fields: dict[str, Any]) -> str | tuple[str, ...] | None:
    targets = fields.get("target_modules")
    if targets == "all-linear":
        return None
    if targets is None:
        if fields.get("target_parameters"):
            return ()
        raise AdapterError(f"{path}: target_modules is missing; name the modules that it adapts")
    return _names(path, "target_modules", targets)


def _parameters(path: Path, fields: dict[str, Any]) -> tuple[str, ...]:
    parameters = fields.get("target_parameters") or []
    if not isinstance(parameters, list) or not all(isinstance(each, str) for each in parameters):
        raise AdapterError(f"{path}: target_parameters must be names, got {parameters!r}")
    return tuple(parameters)


def _excluded(path: Path, fields: dict[str, Any]) -> str | tuple[str, ...]:
    excluded = fields.get("exclude_modules")
    return () if excluded is None else _names(path, "exclude_modules", excluded)


def _names(path: Path, field: str, value: Any) -> str | tuple[str, ...]:
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error as error:
            raise AdapterError(f"{path}: {field} {value!r} is no expression: {error}") from error
        return value
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise AdapterError(f"{path}: {field} must be names or one expression, got {value!r}")
    return tuple(value)


def _pattern(path: Path, fields: dict[str, Any], name: str) -> dict[str, Any]:
    pattern = fields.get(name) or {}
    if not isinstance(pattern, dict):
        raise AdapterError(f"{path}: {name} must be an object, got {pattern!r}")
    for key in pattern:
        try:
            re.compile(key)
        except re.error as error:
            raise AdapterError(f"{path}: {name}: {key!r} is no expression: {error}") from error
    return pattern
