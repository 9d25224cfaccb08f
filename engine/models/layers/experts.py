"""Layers with experts: what a transformers config says of them, and their tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from engine.errors import ModelError
from engine.kernels.experts.gates import ALPHA, GPT_OSS, LIMIT, SILU
from engine.kernels.experts.layer import Experts, Router, SharedExpert
from engine.kernels.experts.routing import RoutingRules
from engine.kernels.experts.weights import ExpertWeights, Fp8Experts, Weights
from engine.kernels.fp8_linear import Fp8Linear
from engine.kernels.linear import Linear
from engine.models.formats.parts import Part
from engine.models.layers.expert_stack import ExpertStack


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """The experts of a model's layers.

    Attributes:
        layers: whether each layer has experts in place of its MLP.
        inner, shared_inner: sizes of an expert and of the one that all tokens take, 0 for none.
        shared_name: of the latter; shared_gate: it is multiplied by a sigmoid of its own.
        prefix: name of the part of a layer that holds them.
        names: of an expert's gate, up and down products.
        router: name of the product that chooses, and whether it has a bias.
        gate: how gate and up are joined, see `gates`.
        joined: all experts are in one tensor each, gate and up rows in turn, and have biases.
    """

    layers: tuple[bool, ...]
    num_experts: int
    rules: RoutingRules
    inner: int
    shared_inner: int = 0
    shared_name: str = "shared_expert"
    shared_gate: bool = True
    prefix: str = "mlp"
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    router: str = "gate"
    router_bias: bool = False
    gate: str = SILU
    joined: bool = False

    def __post_init__(self) -> None:
        top_k, groups, taken = self.rules.top_k, self.rules.num_groups, self.rules.top_groups
        if not 1 <= top_k <= self.num_experts:
            raise ModelError(
                f"config.json: num_experts_per_tok must be from 1 to the number of experts "
                f"({self.num_experts}), got {top_k}; give a config as its authors published it"
            )
        if groups > 1 and (
            self.num_experts % groups or not top_k * groups <= taken * self.num_experts
        ):
            raise ModelError(
                f"config.json: {taken} (topk_group) of {groups} groups (n_group) of "
                f"{self.num_experts} experts do not hold the {top_k} that a token takes; give a "
                "config as its authors published it"
            )


def mixtral_experts(config: Any) -> ExpertsConfig:
    """Read the experts of a Mixtral config."""
    return ExpertsConfig(
        layers=(True,) * config.num_hidden_layers,
        num_experts=config.num_local_experts,
        rules=RoutingRules(config.num_experts_per_tok, over_chosen=True),
        inner=config.intermediate_size,
        prefix="block_sparse_moe",
        names=("w1", "w3", "w2"),
    )


def qwen_experts(config: Any) -> ExpertsConfig:
    """Read the experts of a Qwen2-MoE, Qwen3-MoE or OLMoE config."""
    plain = set(getattr(config, "mlp_only_layers", None) or ())
    step = getattr(config, "decoder_sparse_step", 1)
    if step < 1:
        raise ModelError(
            f"config.json: decoder_sparse_step must be at least 1, got {step}; 1 gives every layer "
            "experts"
        )
    return ExpertsConfig(
        layers=tuple(
            index not in plain and (index + 1) % step == 0
            for index in range(config.num_hidden_layers)
        ),
        num_experts=config.num_experts,
        rules=RoutingRules(config.num_experts_per_tok, over_chosen=config.norm_topk_prob),
        inner=getattr(config, "moe_intermediate_size", config.intermediate_size),
        shared_inner=getattr(config, "shared_expert_intermediate_size", 0),
    )


GREEDY, BY_GROUP = "greedy", "group_limited_greedy"
"""DeepSeek-V2's methods of choosing experts."""


def deepseek_experts(config: Any) -> ExpertsConfig:
    """Read the experts of a DeepSeek-V2 or V3 config, by transformers' rules.

    Of V2 `norm_topk_prob` is not read there either: weights are probabilities over all experts.
    """
    is_third = config.model_type == "deepseek_v3"
    rules = RoutingRules(
        config.num_experts_per_tok or 0,
        over_chosen=is_third and config.norm_topk_prob,
        scale=config.routed_scaling_factor,
        sigmoid=is_third,
    )
    if is_third or config.topk_method == BY_GROUP:
        rules = rules._replace(num_groups=config.n_group, top_groups=config.topk_group)
    return ExpertsConfig(
        layers=tuple(
            index >= config.first_k_dense_replace for index in range(config.num_hidden_layers)
        ),
        num_experts=config.n_routed_experts,
        rules=rules,
        inner=config.moe_intermediate_size,
        shared_inner=config.moe_intermediate_size * config.n_shared_experts,
        shared_name="shared_experts",
        shared_gate=False,
    )


def gpt_oss_experts(config: Any) -> ExpertsConfig:
    """Read the experts of a gpt-oss config."""
    for name, served in (("swiglu_alpha", ALPHA), ("swiglu_limit", LIMIT)):
        if getattr(config, name, served) != served:
            raise ModelError(
                f"config.json: {name} {getattr(config, name)} is not served, {served} is; "
                "--model-impl transformers runs it on transformers' modules"
            )
    return ExpertsConfig(
        layers=(True,) * config.num_hidden_layers,
        num_experts=config.num_local_experts,
        rules=RoutingRules(config.num_experts_per_tok, over_chosen=True),
        inner=config.intermediate_size,
        router="router",
        router_bias=True,
        gate=GPT_OSS,
        joined=True,
    )


EXPERTS: dict[str, Callable[[Any], ExpertsConfig]] = {
    "deepseek_v2": deepseek_experts,
    "deepseek_v3": deepseek_experts,
    "mixtral": mixtral_experts,
    "qwen2_moe": qwen_experts,
    "qwen3_moe": qwen_experts,
    "olmoe": qwen_experts,
    "gpt_oss": gpt_oss_experts,
}
"""The readers of experts, by model_type."""


class _Reader(Protocol):
    def read(self, shape: tuple[int, ...], name: str) -> torch.Tensor: ...
    def read_float32(self, shape: tuple[int, ...], name: str) -> torch.Tensor: ...
    def experts(self, module: str, shape: tuple[int, int, int]) -> Weights: ...
    def part(
        self, module: str, num_channels: int, width: int, channels: torch.Tensor | None = None
    ) -> Part: ...
    def part_by_groups(
        self, module: str, num_channels: int, width: int
    ) -> tuple[Part, torch.Tensor | None]: ...
    def place(self, module: str) -> str: ...
    def unquantized(self, module: str, num_channels: int, width: int) -> torch.Tensor: ...
    def product(self, prefix: str, widths: dict[str, int], fan_in: int) -> Linear | Fp8Linear: ...


def read_experts(
    config: ExpertsConfig, reader: _Reader, layer: str, norm: torch.Tensor, eps: float
) -> Experts:
    """Read the experts of the layer whose tensors' names begin with `layer`.

    Args:
        norm: [hidden], the weight of the norm in front.
    """
    hidden, prefix = len(norm), f"{layer}.{config.prefix}"
    num_experts, router_name = config.num_experts, f"{prefix}.{config.router}"
    router = Router(
        reader.unquantized(router_name, num_experts, hidden),
        reader.read((num_experts,), f"{router_name}.bias") if config.router_bias else None,
        config.rules,
        reader.read_float32((num_experts,), f"{router_name}.e_score_correction_bias")
        if config.rules.sigmoid
        else None,
    )
    shared = None
    if config.shared_inner:
        shared = _read_shared(config, reader, f"{prefix}.{config.shared_name}", hidden)
    read = _read_joined if config.joined else _read_each
    return Experts(norm, eps, router, read(config, reader, f"{prefix}.experts", hidden), shared)


def _read_each(config: ExpertsConfig, reader: _Reader, name: str, hidden: int) -> ExpertWeights:
    """Read experts that are modules of their own.

    Where an expert's down product has its inputs in an order (GPTQ's act-order), gate and up have
    their channels put into it, and nothing is left to do for a step; a rank's are whole groups.
    """
    num_experts, inner = config.num_experts, config.inner
    gate_up = ExpertStack(reader.place, num_experts, 2 * inner)
    down = ExpertStack(reader.place, num_experts, hidden)
    for expert in range(num_experts):
        gate, up, own_down = (f"{name}.{expert}.{part}" for part in config.names)
        part, order = reader.part_by_groups(own_down, hidden, inner)
        down.put(expert, 0, part, own_down)
        for start, module in ((0, gate), (inner, up)):
            gate_up.put(expert, start, reader.part(module, inner, hidden, order), module)
    return ExpertWeights(gate_up.weights, down.weights, None, None, config.gate)


def _read_joined(config: ExpertsConfig, reader: _Reader, name: str, hidden: int) -> ExpertWeights:
    """Read experts of one tensor each."""
    num_experts, inner = config.num_experts, config.inner
    gate_up = reader.experts(f"{name}.gate_up_proj", (num_experts, 2 * inner, hidden))
    bias = reader.read((num_experts, 2 * inner), f"{name}.gate_up_proj_bias")
    return ExpertWeights(
        in_halves(gate_up),
        reader.experts(f"{name}.down_proj", (num_experts, hidden, inner)),
        _in_halves(bias),
        reader.read((num_experts, hidden), f"{name}.down_proj_bias"),
        config.gate,
    )


def _read_shared(config: ExpertsConfig, reader: _Reader, name: str, hidden: int) -> SharedExpert:
    inner = config.shared_inner
    return SharedExpert(
        reader.product(name, {"gate_proj": inner, "up_proj": inner}, hidden),
        reader.product(name, {"down_proj": hidden}, inner),
        reader.unquantized(f"{name}_gate", 1, hidden) if config.shared_gate else None,
    )


def products_per_token(config: ExpertsConfig, hidden: int) -> int:
    """The number of weights that a token multiplies in a layer of experts, but for the shared."""
    return hidden * (3 * config.rules.top_k * config.inner + config.num_experts)


def in_halves(weights: Weights) -> Weights:
    """Put the even channels of each expert first, then the odd ones."""
    if isinstance(weights, torch.Tensor):
        return _in_halves(weights)
    if isinstance(weights, Fp8Experts):
        values = _in_halves(weights.values.view(torch.uint8)).view(weights.values.dtype)
        return Fp8Experts(values, _in_halves(weights.scales))
    groups = weights.groups
    assert groups.zeros is None
    shape = (weights.num_experts, weights.shape[1], -1)
    words, scales = (
        _in_halves(each.view(shape)).flatten(0, 1) for each in (groups.words, groups.scales)
    )
    return weights._replace(groups=groups._replace(words=words, scales=scales))


def _in_halves(tensor: torch.Tensor) -> torch.Tensor:
    """The rows of [experts, rows, ...], even ones first."""
    return torch.cat([tensor[:, ::2], tensor[:, 1::2]], dim=1)
