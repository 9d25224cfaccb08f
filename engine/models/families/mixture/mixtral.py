"""Mixtral (arXiv 2401.04088)."""

from __future__ import annotations

from typing import Any

from engine.kernels.experts.routing import RoutingRules
from engine.models.families.config import biases, decoder, one_window, silu, sizes, whole_heads
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.experts import ExpertMlp
from engine.models.layers.norms import RmsNorm


def mixtral(config: Any) -> DecoderSpec:
    """Mistral's layers, with experts in place of the MLP."""
    eps = config.rms_norm_eps
    silu(config)  # the only activation of experts
    experts = ExpertMlp(
        hidden_size=config.hidden_size,
        norm_eps=eps,
        num_experts=config.num_local_experts,
        rules=RoutingRules(config.num_experts_per_tok, over_chosen=True),
        inner=config.intermediate_size,
        name="block_sparse_moe",
        names=("w1", "w3", "w2"),
    )
    layers = [
        (
            Attention(
                **sizes(config),
                **biases(config),
                norm=RmsNorm("input_layernorm", eps),
                rotation=rotation,
                window=window,
            ),
            experts,
        )
        for rotation, window in zip(whole_heads(config), one_window(config), strict=True)
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps))
