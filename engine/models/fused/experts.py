"""Layers with experts: what a transformers config says of them, and their tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from engine.errors import ModelError
from engine.kernels.experts.gates import ALPHA, GPT_OSS, LIMIT, SILU
from engine.kernels.experts.layer import Experts, Router, SharedExpert
from engine.kernels.experts.weights import ExpertWeights, Fp8Experts, Weights
from engine.kernels.fp8_linear import Fp8Linear
from engine.kernels.linear import Linear
from engine.models.fused.expert_stack import ExpertStack
from engine.models.quantized.parts import Part


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """The experts of a model's layers.

    Attributes:
        layers: whether each layer has experts in place of its MLP.
        inner, shared_inner: sizes of an expert and of the one that all tokens take, 0 for none.
        over_chosen: the chosen experts' weights sum to one.
        prefix: name of the part of a layer that holds them.
        names: of an expert's gate, up and down products.
        router: name of the product that chooses, and whether it has a bias.
        gate: how gate and up are joined, see `gates`.
        joined: all experts are in one tensor each, gate and up rows in turn, and have biases.
    """

    layers: tuple[bool, ...]
    num_experts: int
    top_k: int
    inner: int
    over_chosen: bool
    shared_inner: int = 0
    prefix: str = "mlp"
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    router: str = "gate"
    router_bias: bool = False
    gate: str = SILU
    joined: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.num_experts:
            raise ModelError(
                f"config.json: num_experts_per_tok must be from 1 to the number of experts "
                f"({self.num_experts}), got {self.top_k}; give a config as its authors published it"
            )


def mixtral_experts(config: Any) -> ExpertsConfig:
    """Read the experts of a Mixtral config."""
    return ExpertsConfig(
        layers=(True,) * config.num_hidden_layers,
        num_experts=config.num_local_experts,
        top_k=config.num_experts_per_tok,
        inner=config.intermediate_size,
        over_chosen=True,
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
        top_k=config.num_experts_per_tok,
        inner=getattr(config, "moe_intermediate_size", config.intermediate_size),
        over_chosen=config.norm_topk_prob,
        shared_inner=getattr(config, "shared_expert_intermediate_size", 0),
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
        top_k=config.num_experts_per_tok,
        inner=config.intermediate_size,
        over_chosen=True,
        router="router",
        router_bias=True,
        gate=GPT_OSS,
        joined=True,
    )


EXPERTS: dict[str, Callable[[Any], ExpertsConfig]] = {
    "mixtral": mixtral_experts,
    "qwen2_moe": qwen_experts,
    "qwen3_moe": qwen_experts,
    "olmoe": qwen_experts,
    "gpt_oss": gpt_oss_experts,
}
"""The readers of experts, by model_type."""


class _Reader(Protocol):
    def read(self, shape: tuple[int, ...], name: str) -> torch.Tensor: ...
    def experts(self, module: str, shape: tuple[int, int, int]) -> Weights: ...
    def part(self, module: str, num_channels: int, width: int) -> Part: ...
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
        config.top_k,
        config.over_chosen,
    )
    shared = None
    if config.shared_inner:
        shared = _read_shared(config.shared_inner, reader, prefix, hidden)
    read = _read_joined if config.joined else _read_each
    return Experts(norm, eps, router, read(config, reader, f"{prefix}.experts", hidden), shared)


def _read_each(config: ExpertsConfig, reader: _Reader, name: str, hidden: int) -> ExpertWeights:
    """Read experts that are modules of their own."""
    num_experts, inner = config.num_experts, config.inner
    gate_up = ExpertStack(name, num_experts, 2 * inner)
    down = ExpertStack(name, num_experts, hidden)
    gate_name, up_name, down_name = config.names
    for expert in range(num_experts):
        own = f"{name}.{expert}"
        gate_up.put(expert, 0, reader.part(f"{own}.{gate_name}", inner, hidden))
        gate_up.put(expert, inner, reader.part(f"{own}.{up_name}", inner, hidden))
        down.put(expert, 0, reader.part(f"{own}.{down_name}", hidden, inner))
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


def _read_shared(inner: int, reader: _Reader, prefix: str, hidden: int) -> SharedExpert:
    name = f"{prefix}.shared_expert"
    return SharedExpert(
        reader.product(name, {"gate_proj": inner, "up_proj": inner}, hidden),
        reader.product(name, {"down_proj": hidden}, inner),
        reader.unquantized(f"{name}_gate", 1, hidden),
    )


def products_per_token(config: ExpertsConfig, hidden: int) -> int:
    """The number of weights that a token multiplies in a layer of experts, but for the shared."""
    return hidden * (3 * config.top_k * config.inner + config.num_experts)


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
