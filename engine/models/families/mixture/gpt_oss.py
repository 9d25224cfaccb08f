"""gpt-oss (arXiv 2508.10925)."""

from __future__ import annotations

from typing import Any

from engine.errors import ModelError
from engine.kernels.experts.gates import ALPHA, GPT_OSS, LIMIT
from engine.kernels.experts.routing import RoutingRules
from engine.models.families.config import biases, decoder, silu, sizes, whole_heads, windows
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.experts import ExpertMlp
from engine.models.layers.norms import RmsNorm


def gpt_oss(config: Any) -> DecoderSpec:
    """Attention with sinks, and experts with biases and a gate of their own."""
    for name, served in (("swiglu_alpha", ALPHA), ("swiglu_limit", LIMIT)):
        if getattr(config, name, served) != served:
            raise ModelError(
                f"config.json: {name} {getattr(config, name)} is not served, {served} is; "
                "--model-impl transformers runs it on transformers' modules"
            )
    eps = config.rms_norm_eps
    silu(config)
    experts = ExpertMlp(
        hidden_size=config.hidden_size,
        norm_eps=eps,
        num_experts=config.num_local_experts,
        rules=RoutingRules(config.num_experts_per_tok, over_chosen=True),
        inner=config.intermediate_size,
        router="router",
        router_bias=True,
        gate=GPT_OSS,
        joined=True,
    )
    layers = [
        (
            Attention(
                **sizes(config),
                **biases(config),
                norm=RmsNorm("input_layernorm", eps),
                rotation=rotation,
                window=window,
                has_sinks=True,
            ),
            experts,
        )
        for rotation, window in zip(whole_heads(config), windows(config), strict=True)
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps))
