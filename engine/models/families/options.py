"""What layers of each architecture do: a table of options, read from transformers configs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

RMS, RMS_PLUS_ONE, LAYER_NORM = "rms", "rms-plus-one", "layer"
"""Kinds of norms: RMSNorm, RMSNorm by 1 + weight, LayerNorm."""
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Our names of the activations that configs name."""


@dataclass(frozen=True, kw_only=True)
class LayerNames:
    """Names of tensors in a layer; a norm without a name is not there.

    Attributes:
        attention_norm, mlp_norm: in front. after_attention, after_mlp: behind, before the sum.
        gate_up: gate and up product, or the only one in front of the activation, or both packed.
        final_norm: behind the last layer.
    """

    attention_norm: str | None = "input_layernorm"
    after_attention: str | None = None
    mlp_norm: str | None = "post_attention_layernorm"
    after_mlp: str | None = None
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    o: str = "o_proj"
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    final_norm: str = "norm"


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """What an architecture's layers do; the defaults are Llama's.

    Attributes:
        parallel: attention and MLP read the same normed input, and both are added.
        activation: one of ours, in front of the down product; gated, times the up product.
        qk_norm: None, "head" (every head alone) or "whole" (all heads together).
        clip_qkv: bound of the QKV product's numbers, before they are turned.
        interleaved: heads are turned in pairs of neighbours.
        rounds_embedding_scale: the scale is rounded to the model's dtype.
        residual_scale: factor of what attention and MLP add.
        attention_scale: factor of scores; None is head_dim ** -0.5.
        sinks: each head has one more score in the softmax, without a value.
        logit_scale: factor of logits. logit_softcap: c in c * tanh(logit / c), behind the factor.
    """

    names: LayerNames = LayerNames()
    norm: str = RMS
    norm_bias: bool = False
    parallel: bool = False
    activation: str = "silu"
    gated: bool = True
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    lm_head_bias: bool = False
    qk_norm: str | None = None
    clip_qkv: float | None = None
    interleaved: bool = False
    embedding_scale: float = 1.0
    rounds_embedding_scale: bool = False
    residual_scale: float = 1.0
    attention_scale: float | None = None
    attention_softcap: float | None = None
    sinks: bool = False
    logit_scale: float = 1.0
    logit_softcap: float | None = None


def activation_name(config: Any) -> str:
    """The activation as a config names it."""
    name: str = getattr(config, "hidden_activation", None) or config.hidden_act
    return name


PACKED: dict[str, Any] = {"qkv": ("qkv_proj",), "gate_up": ("gate_up_proj",)}
SANDWICH: dict[str, Any] = {
    "after_attention": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "after_mlp": "post_feedforward_layernorm",
}
"""Norms on both sides, as Gemma 2 names them."""


def _biased(config: Any) -> dict[str, Any]:
    """The biases of families whose attention has all or none."""
    bias = bool(getattr(config, "attention_bias", False))
    mlp_bias = bool(getattr(config, "mlp_bias", False))
    return {"qkv_bias": bias, "o_bias": bias, "mlp_bias": mlp_bias}


def _llama(config: Any) -> LayerOptions:
    return LayerOptions(**_biased(config))


def _qwen2(config: Any) -> LayerOptions:
    return LayerOptions(qkv_bias=getattr(config, "qkv_bias", True))


def _qwen3(config: Any) -> LayerOptions:
    return LayerOptions(**_biased(config), qk_norm="head")


def _olmoe(config: Any) -> LayerOptions:
    return LayerOptions(**_biased(config), qk_norm="whole", clip_qkv=config.clip_qkv)


def _olmo2(config: Any) -> LayerOptions:
    names = LayerNames(**SANDWICH | {"attention_norm": None, "mlp_norm": None})
    return LayerOptions(**_biased(config), names=names, qk_norm="whole")


def _deepseek(config: Any) -> LayerOptions:
    scale = (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    rope = config.rope_parameters
    if rope["rope_type"] != "default" and (all_dim := rope.get("mscale_all_dim", 0)):
        scale *= (0.1 * all_dim * math.log(max(rope["factor"], 1.0)) + 1.0) ** 2
    return LayerOptions(attention_scale=scale)


def _gpt_oss(config: Any) -> LayerOptions:
    return LayerOptions(**_biased(config), sinks=True)


def _gemma(config: Any) -> LayerOptions:
    return LayerOptions(
        **_biased(config),
        norm=RMS_PLUS_ONE,
        activation=ACTIVATIONS[activation_name(config)],
        embedding_scale=config.hidden_size**0.5,
        rounds_embedding_scale=True,
    )


def _gemma2(config: Any) -> LayerOptions:
    return LayerOptions(
        **_biased(config),
        names=LayerNames(**SANDWICH),
        norm=RMS_PLUS_ONE,
        activation=ACTIVATIONS[activation_name(config)],
        qk_norm="head" if config.model_type == "gemma3_text" else None,
        embedding_scale=config.hidden_size**0.5,
        rounds_embedding_scale=True,
        attention_scale=config.query_pre_attn_scalar**-0.5,
        # Gemma 3's attention takes no cap, whatever its config says.
        attention_softcap=config.attn_logit_softcapping if config.model_type == "gemma2" else None,
        logit_softcap=config.final_logit_softcapping,
    )


def _granite(config: Any) -> LayerOptions:
    return LayerOptions(
        **_biased(config),
        embedding_scale=config.embedding_multiplier,
        residual_scale=config.residual_multiplier,
        attention_scale=config.attention_multiplier,
        logit_scale=1.0 / config.logits_scaling,
    )


def _phi3(config: Any) -> LayerOptions:
    return LayerOptions(names=LayerNames(**PACKED))


def _glm(config: Any) -> LayerOptions:
    behind: dict[str, Any] = {}
    if config.model_type == "glm4":
        behind = {"after_attention": "post_self_attn_layernorm", "after_mlp": "post_mlp_layernorm"}
    return LayerOptions(
        names=LayerNames(gate_up=PACKED["gate_up"], **behind),
        qkv_bias=config.attention_bias,
        interleaved=True,
    )


def _cohere(config: Any) -> LayerOptions:
    return LayerOptions(
        **_biased(config),
        names=LayerNames(mlp_norm=None),
        norm=LAYER_NORM,
        parallel=True,
        interleaved=True,
        logit_scale=config.logit_scale,
    )


def _phi(config: Any) -> LayerOptions:
    names = LayerNames(
        mlp_norm=None, o="dense", gate_up=("fc1",), down="fc2", final_norm="final_layernorm"
    )
    return LayerOptions(
        names=names,
        norm=LAYER_NORM,
        norm_bias=True,
        parallel=True,
        activation=ACTIVATIONS[activation_name(config)],
        gated=False,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        lm_head_bias=True,
    )


def _stablelm(config: Any) -> LayerOptions:
    parallel = config.use_parallel_residual
    return LayerOptions(
        names=LayerNames(mlp_norm=None) if parallel else LayerNames(),
        norm=LAYER_NORM,
        norm_bias=True,
        parallel=parallel,
        qkv_bias=config.use_qkv_bias,
    )


def _starcoder2(config: Any) -> LayerOptions:
    bias = config.use_bias
    return LayerOptions(
        names=LayerNames(gate_up=("c_fc",), down="c_proj"),
        norm=LAYER_NORM,
        norm_bias=True,
        activation=ACTIVATIONS[activation_name(config)],
        gated=False,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
    )


OPTIONS: dict[str, Callable[[Any], LayerOptions]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mixtral": _llama,
    "qwen2_moe": _qwen2,
    "qwen3_moe": _qwen3,
    "olmoe": _olmoe,
    "cohere": _cohere,
    "cohere2": _cohere,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma2,
    "glm": _glm,
    "glm4": _glm,
    "gpt_oss": _gpt_oss,
    "granite": _granite,
    "olmo2": _olmo2,
    "olmo3": _olmo2,
    "phi": _phi,
    "phi3": _phi3,
    "smollm3": _llama,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
}
"""The readers of options, by model_type."""
