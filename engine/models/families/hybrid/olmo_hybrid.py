"""OLMo Hybrid: three gated delta rules to one attention, without rotations."""

from __future__ import annotations

from typing import Any

from engine.models.families.config import (
    biases,
    decoder,
    layer_kinds,
    mlp_sizes,
    no_rotations,
    silu,
    sizes,
    whole_heads,
)
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.layer import SublayerSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import RmsNorm
from engine.models.layers.query_key import WholeNorm
from engine.models.layers.recurrent.gated_delta import GatedDelta
from engine.models.layers.residual import AddedOutput
from engine.models.layers.rotation import RotationSpeeds

DELTA, ATTENTION = "linear_attention", "full_attention"
PRODUCTS = tuple((f"{name}_proj", 1) for name in "qkvgba")
RENAMED = (
    ("attention_layer_norm", "input_layernorm"),
    ("feedforward_layer_norm", "post_attention_layernorm"),
)
O_NORM_EPS = 1e-5
"""Of the gated norms, whatever the config says of others."""


def olmo_hybrid(config: Any) -> DecoderSpec:
    """A delta rule whose norms come first, or attention whose norms come after, and a gated MLP."""
    eps = config.rms_norm_eps
    theta = (config.rope_parameters or {}).get("rope_theta")  # null in published configs
    speeds = no_rotations(config) if theta is None else whole_heads(config)
    layers = [
        _delta_layer(config) if kind == DELTA else _attention_layer(config, rotation)
        for kind, rotation in zip(layer_kinds(config, DELTA, ATTENTION), speeds, strict=True)
    ]
    return decoder(config, layers, RmsNorm("model.norm", eps), renamed=RENAMED)


def _delta_layer(config: Any) -> tuple[SublayerSpec, SublayerSpec]:
    eps = config.rms_norm_eps
    delta = GatedDelta(
        hidden_size=config.hidden_size,
        norm=RmsNorm("input_layernorm", eps),
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        conv_width=config.linear_conv_kernel_dim,
        eps=O_NORM_EPS,
        products=PRODUCTS,
        convolutions=("q_conv1d", "k_conv1d", "v_conv1d"),
        norm_name="o_norm",
        o="o_proj",
        beta_scale=2.0 if config.linear_allow_neg_eigval else 1.0,
    )
    norm = RmsNorm("post_attention_layernorm", eps)
    return delta, Mlp(**mlp_sizes(config), norm=norm, activation=silu(config))


def _attention_layer(config: Any, rotation: RotationSpeeds) -> tuple[SublayerSpec, SublayerSpec]:
    eps = config.rms_norm_eps
    attention = Attention(
        **sizes(config),
        **biases(config),
        qk_norm=WholeNorm(eps),
        rotation=rotation,
        output=AddedOutput(RmsNorm("post_attention_layernorm", eps)),
    )
    output = AddedOutput(RmsNorm("post_feedforward_layernorm", eps))
    return attention, Mlp(**mlp_sizes(config), activation=silu(config), output=output)
