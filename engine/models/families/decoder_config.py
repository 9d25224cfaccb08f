"""Reads the fused decoder's sizes from a transformers config, or says why it cannot run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.contracts.attention import AttentionSpec
from engine.errors import ModelError
from engine.models.families.options import ACTIVATIONS, OPTIONS, LayerOptions, activation_name
from engine.models.layers.experts import BY_GROUP, EXPERTS, GREEDY, ExpertsConfig
from engine.models.layers.latent import LatentConfig, latent_config
from engine.models.layers.rotation import (
    ROPE_TYPES,
    RotationSpeeds,
    lane_order,
    no_rotation,
    rope_parameters,
    rotary_dim,
    rotation_speeds,
)

ARCHITECTURES = {
    "CohereForCausalLM": "cohere",
    "Cohere2ForCausalLM": "cohere2",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "GlmForCausalLM": "glm",
    "Glm4ForCausalLM": "glm4",
    "GptOssForCausalLM": "gpt_oss",
    "GraniteForCausalLM": "granite",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo3",
    "OlmoeForCausalLM": "olmoe",
    "PhiForCausalLM": "phi",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "SmolLM3ForCausalLM": "smollm3",
    "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
}


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The sizes and features of a decoder.

    Attributes:
        windows: sliding window of each layer, None where a layer sees all.
        rotations: the speeds of which there are. layer_rotations: which of them each layer has.
        lane_order: see `rotation.lane_order`.
        latent: of attention whose keys and values are compressed; None for others.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    tied: bool
    windows: tuple[int | None, ...]
    max_position: int
    initializer_range: float
    rotations: tuple[RotationSpeeds, ...]
    layer_rotations: tuple[int, ...]
    lane_order: torch.Tensor | None
    options: LayerOptions
    experts: ExpertsConfig | None = None
    latent: LatentConfig | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the layers are a Llama's but for biases, attention, and experts."""
        options = self.options
        own = ("qkv_bias", "o_bias", "mlp_bias", "qk_norm", "clip_qkv", "sinks", "attention_scale")
        plain = LayerOptions(**{name: getattr(options, name) for name in own})
        return options == plain and self.lane_order is None

    @property
    def qkv_bias(self) -> bool:
        """Whether the QKV product has a bias."""
        return self.options.qkv_bias

    @property
    def o_bias(self) -> bool:
        """Whether the output product has a bias."""
        return self.options.o_bias

    @property
    def mlp_bias(self) -> bool:
        """Whether the MLP's products have biases."""
        return self.options.mlp_bias

    @property
    def qk_norm(self) -> bool:
        """Whether every head's queries and keys are normalized."""
        return self.options.qk_norm == "head"

    @property
    def whole_qk_norm(self) -> bool:
        """Whether queries are normalized over all heads together, and so are keys."""
        return self.options.qk_norm == "whole"

    @property
    def clip_qkv(self) -> float | None:
        """The bound of the QKV product's numbers, before they are turned."""
        return self.options.clip_qkv


def unfused_reason(config: Any) -> str | None:
    """Why the fused decoder does not run a transformers config; None if it does."""
    architecture = (config.architectures or ["(none)"])[0]
    if ARCHITECTURES.get(architecture) != config.model_type:
        return f"architecture {architecture}"
    return unfused_layer_reason(config)


def unfused_layer_reason(config: Any) -> str | None:
    """Why the fused decoder does not run a layer of one of its families; None if it does."""
    activation = activation_name(config)
    if activation not in ACTIVATIONS:
        return f"hidden_act {activation!r}"
    if config.model_type in SILU_ONLY and ACTIVATIONS[activation] != "silu":
        return f"hidden_act {activation!r}"
    for name in ("use_qk_norm", "qk_layernorm", "use_bidirectional_attention"):
        if getattr(config, name, False):
            return f"{name} true"
    if (reason := _unread_latent(config)) is not None:
        return reason
    head_dim = _head_dim(config)
    for layer_type in _layer_types(config):
        rope = rope_parameters(config, layer_type)
        if rope["rope_type"] not in ROPE_TYPES:
            return f"rope_type {rope['rope_type']!r}"
        turned = rotary_dim(config, head_dim, layer_type)
        if turned % 2 or head_dim % 2:
            return f"{turned} of {head_dim} lanes of a head turned"
        if turned < head_dim and config.model_type in PLAIN:
            return f"partial_rotary_factor {rope['partial_rotary_factor']}"
    return None


SILU_ONLY = frozenset(OPTIONS) - {"gemma", "gemma2", "gemma3_text", "phi", "starcoder2"}
"""Families whose options name no other activation."""
PLAIN = {"llama", "mistral", "qwen2", "qwen3", *EXPERTS} - {"deepseek_v2", "deepseek_v3"}
"""Families whose layers are a Llama's, see `DecoderConfig.is_plain`, and turn whole heads."""


def _unread_latent(config: Any) -> str | None:
    """Why compressed attention of a config is not run; None if it is, or there is none."""
    latent = latent_config(config)
    if latent is None:
        return None
    for name in ("attention_bias", "mlp_bias"):
        if getattr(config, name, False):
            return f"{name} true"
    if latent.value > latent.head_dim:
        return f"v_head_dim {latent.value} above the {latent.head_dim} of keys"
    method = config.topk_method if config.model_type == "deepseek_v2" else GREEDY
    return None if method in (GREEDY, BY_GROUP) else f"topk_method {method!r}"


def decoder_config(config: Any) -> DecoderConfig:
    """Read a transformers config for which `unfused_reason` is None; raises `ModelError`."""
    _check_sizes(config)
    head_dim = _head_dim(config)
    rotations, layer_rotations = _rotations(config, head_dim)
    options = OPTIONS[config.model_type](config)
    turned = rotary_dim(config, head_dim, _layer_types(config)[0])
    latent = latent_config(config)
    return DecoderConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_q_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=head_dim,
        norm_eps=_norm_eps(config),
        tied=config.tie_word_embeddings,
        windows=_windows(config),
        max_position=config.max_position_embeddings,
        initializer_range=config.initializer_range,
        rotations=rotations,
        layer_rotations=layer_rotations,
        lane_order=None
        if latent is not None
        else lane_order(head_dim, turned, interleaved=options.interleaved),
        options=options,
        experts=_experts(config),
        latent=latent,
    )


def _check_sizes(config: Any) -> None:
    """Refuse sizes of which no layer could be made, before weights of other shapes are met."""
    sizes = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"]
    sizes += ["num_attention_heads", "num_key_value_heads", "head_dim"]
    if any(window is not None for window in _windows(config)):
        sizes.append("sliding_window")
    for name in sizes:
        value = getattr(config, name, None)
        if value is not None and value < 1:
            raise ModelError(f"config.json: {name} must be at least 1, got {value}; {AS_PUBLISHED}")
    heads, keys = config.num_attention_heads, config.num_key_value_heads
    if keys is not None and heads % keys:
        raise ModelError(
            f"config.json: num_key_value_heads {keys} does not divide the {heads} of "
            f"num_attention_heads; {AS_PUBLISHED}"
        )


AS_PUBLISHED = "give a config as its authors published it"


def attention_specs(config: DecoderConfig) -> list[AttentionSpec]:
    """The attention of each layer; sinks, which a checkpoint has, are zeros."""
    scale = config.options.attention_scale
    sinks = torch.zeros(config.num_q_heads) if config.options.sinks else None
    return [
        AttentionSpec(
            num_q_heads=config.num_q_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5 if scale is None else scale,
            sliding_window=window,
            softcap=config.options.attention_softcap,
            sinks=sinks,
        )
        for window in config.windows
    ]


def _head_dim(config: Any) -> int:
    if (latent := latent_config(config)) is not None:
        return latent.head_dim
    head_dim: int | None = getattr(config, "head_dim", None)
    return head_dim or int(config.hidden_size // config.num_attention_heads)


def _norm_eps(config: Any) -> float:
    names = ("rms_norm_eps", "layer_norm_eps", "norm_epsilon")
    return next(float(getattr(config, name)) for name in names if hasattr(config, name))


def _layer_types(config: Any) -> list[str | None]:
    """The types of layers whose rotations differ; one None where they do not."""
    own = [name for name, value in config.rope_parameters.items() if isinstance(value, dict)]
    return sorted(own) or [None]


def _rotations(config: Any, head_dim: int) -> tuple[tuple[RotationSpeeds, ...], tuple[int, ...]]:
    """The rotations there are, and which of them each layer has."""
    count = config.num_hidden_layers
    types = _layer_types(config)
    rotations = [rotation_speeds(config, head_dim, layer_type) for layer_type in types]
    if types != [None]:
        return tuple(rotations), tuple(types.index(kind) for kind in config.layer_types[:count])
    if config.model_type == "cohere2":  # layers that see all keys turn nothing
        turned = [kind == "sliding_attention" for kind in config.layer_types[:count]]
    else:
        turned = [bool(value) for value in getattr(config, "no_rope_layers", ())] or [True] * count
    if all(turned):
        return tuple(rotations), (0,) * count
    return (rotations[0], no_rotation(head_dim)), tuple(0 if value else 1 for value in turned)


def _experts(config: Any) -> ExpertsConfig | None:
    read = EXPERTS.get(config.model_type)
    return None if read is None or getattr(config, "num_experts", 1) == 0 else read(config)


ONE_WINDOW = ("mistral", "mixtral", "phi3", "qwen3_moe", "starcoder2")
"""Families whose layers have one window or none."""


def _windows(config: Any) -> tuple[int | None, ...]:
    num_layers: int = config.num_hidden_layers
    window: int | None = getattr(config, "sliding_window", None)
    if config.model_type in ONE_WINDOW:
        return (window,) * num_layers
    types = getattr(config, "layer_types", None)
    if types is None or not getattr(config, "use_sliding_window", True):
        return (None,) * num_layers
    return tuple(window if kind == "sliding_attention" else None for kind in types[:num_layers])
