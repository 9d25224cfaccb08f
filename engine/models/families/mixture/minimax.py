"""MiniMax-M2."""

from __future__ import annotations

from typing import Any

from engine.kernels.experts.routing import RoutingRules
from engine.models.families.config import decoder, lanes, rotations, silu, sizes
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.experts import ExpertMlp
from engine.models.layers.norms import RmsNorm
from engine.models.layers.query_key import WholeNorm


def minimax_m2(config: Any) -> DecoderSpec:
    """Attention with norms over all heads, half of whose lanes rotate, and experts."""
    eps = config.rms_norm_eps
    silu(config)  # the only activation of experts
    experts = ExpertMlp(
        hidden_size=config.hidden_size,
        norm_eps=eps,
        name="block_sparse_moe",
        names=("w1", "w3", "w2"),
        num_experts=config.num_local_experts,
        rules=RoutingRules(config.num_experts_per_tok, over_chosen=True, sigmoid=True),
        correction="e_score_correction_bias",
        inner=config.intermediate_size,
    )
    layers = [
        (
            Attention(
                **sizes(config),
                norm=RmsNorm("input_layernorm", eps),
                qk_norm=WholeNorm(eps),
                rotation=rotation,
                lane_order=lanes(config),
            ),
            experts,
        )
        for rotation in rotations(config)
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps), unread=("model.mtp",))
