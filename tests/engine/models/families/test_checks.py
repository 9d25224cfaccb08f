"""A config of which no decoder can be made is refused in one line, whatever is wrong with it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig

from engine.config import ModelConfig
from engine.errors import ModelError
from engine.models.families.table import ARCHITECTURES, decoder_spec
from engine.models.layers.recurrent.state_space import StateSpace
from engine.models.loader import load_model
from tests.engine.models.families.hybrid_models import FAMILIES, config_of
from tests.engine.models.small_models import MODELS

NAMES = {own.model_type: name for name, own in ARCHITECTURES.items()}
NEW = ("gemma4", "gemma4-shared", "kimi_linear", "mistral4")
"""Families that transformers 5.0 lacks."""
ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}

GROWING = {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1}
DELTA_SIZES = (
    *("linear_num_key_heads", "linear_num_value_heads"),
    *("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"),
)
SPACE_SIZES = ("mamba_d_state", "mamba_n_groups", "mamba_d_conv")
NEMOTRON_SIZES = ("mamba_num_heads", "ssm_state_size", "n_groups", "conv_kernel")
KIMI_SIZES = (
    *("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"),
    *("kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "q_lora_rank", "moe_intermediate_size"),
)
ZEROS = {
    **dict.fromkeys(("qwen3_next", "qwen3_5", "olmo_hybrid"), DELTA_SIZES),
    **dict.fromkeys(("granite", "falcon_h1"), SPACE_SIZES),
    "nemotron_h": NEMOTRON_SIZES,
    "kimi_linear": KIMI_SIZES,
    "lfm2": ("conv_L_cache", "block_multiple_of"),
    "lfm2_moe": ("conv_L_cache", "moe_intermediate_size"),
    "mistral4": ("kv_lora_rank", "q_lora_rank", "v_head_dim"),
    "ernie-moe": ("moe_k", "moe_layer_interval", "moe_intermediate_size"),
}
NULLS = {
    "granite": ("logits_scaling", "embedding_multiplier", "residual_multiplier"),
    "falcon_h1": (
        *("embedding_multiplier", "lm_head_multiplier", "key_multiplier"),
        *("attention_in_multiplier", "attention_out_multiplier"),
        *("ssm_in_multiplier", "ssm_out_multiplier"),
    ),
    "ernie-moe": ("moe_k", "moe_layer_interval"),
    "kimi_linear": ("v_head_dim",),
    "mistral4": ("num_experts_per_tok",),
}
OTHERS: list[tuple[str, str, Any]] = [
    ("granite", "logits_scaling", 0),
    ("granite", "mamba_d_conv", -1),
    ("granite", "mamba_n_groups", 3),
    ("falcon_h1", "mamba_n_groups", 3),
    ("falcon_h1", "mlp_multipliers", [1.0]),
    ("falcon_h1", "mlp_multipliers", [1.0, 1.0, 1.0]),
    ("falcon_h1", "mlp_multipliers", [1.0, None]),
    ("falcon_h1", "ssm_multipliers", [1.0] * 4),
    ("falcon_h1", "ssm_multipliers", [1.0] * 6),
    ("nemotron_h", "n_groups", 3),
    ("nemotron_h", "mamba_num_heads", 7),
    ("qwen3_5", "linear_num_value_heads", 3),
    ("lfm2", "conv_L_cache", -2),
    ("lfm2_moe", "layer_types", None),
    ("gemma4", "hidden_size_per_layer_input", -1),
    ("gemma4", "num_kv_shared_layers", -1),
    ("qwen3_next", "partial_rotary_factor", 2.0),
    ("qwen3_next", "partial_rotary_factor", -0.5),
    ("minimax-m2", "partial_rotary_factor", 2.0),
]
UNREADABLE: list[tuple[str, dict[str, Any]]] = [
    ("ernie-moe", {"moe_layer_start_index": None}),
    ("ernie-moe", {"moe_num_shared_experts": None}),
    ("gemma4", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    ("gemma4", {"layer_types": ["sliding_attention"] * 4}),
    ("glm4-moe-lite", {"mlp_layer_types": ["dense"]}),
    ("hunyuan-moe", {"moe_topk": [1]}),
    ("mistral4", {"rope_parameters": GROWING}),
    ("mistral4", {"first_k_dense_replace": None}),
    ("ministral3", {"rope_parameters": GROWING}),
]


def own_config(family: str) -> PreTrainedConfig:
    """The config of a small model, where this transformers has its family."""
    if family in FAMILIES:
        return config_of(family)
    if family in NEW and family not in MODELS:
        pytest.skip(f"transformers has no {family}")
    return MODELS[family]


def refusal(family: str, folder: Path, **changes: Any) -> str:
    """What a start with random weights says of a config with other values."""
    config = own_config(family)
    content = config.to_dict() | changes
    content["architectures"] = [NAMES[config.model_type]]
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(ModelError) as error:
        load_model(ModelConfig(model=str(folder), load_format="dummy"), torch.device("cpu"))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("granite", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("kimi_linear", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("nemotron_h", {"mamba_hidden_act": "gelu"}, "mamba_hidden_act 'gelu'"),
        (
            "qwen3_next",
            {"head_dim": 12, "rope_parameters": ROPE},
            "3 of 12 lanes of a head rotated",
        ),
    ],
)
def test_the_reason_comes_before_what_the_fallback_lacks(
    family: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    said = refusal(family, tmp_path, **changes)
    architecture, _, why = said.partition(" is not supported: ")
    assert why.startswith(f"{reason}, which the fused decoder does not run; nor do")
    assert why.endswith("modules: layers of type 'linear_attention'")
    assert architecture.endswith("ForCausalLM")


def test_values_wider_than_keys(tmp_path: Path) -> None:
    assert "v_head_dim 12 above the 8 of keys" in refusal("kimi_linear", tmp_path, v_head_dim=12)


@pytest.mark.parametrize(("count", "kind"), [(3, "full"), (4, "sliding"), (9, "sliding")])
def test_layers_that_read_the_keys_of_none(count: int, kind: str, tmp_path: Path) -> None:
    said = refusal("gemma4-shared", tmp_path, num_kv_shared_layers=count)
    assert f"num_kv_shared_layers {count}" in said
    assert f"'{kind}_attention'" in said


def test_tokens_without_vectors_of_layers(tmp_path: Path) -> None:
    said = refusal("gemma4-shared", tmp_path, vocab_size_per_layer_input=96)
    assert "vocab_size_per_layer_input 96 is less than the 97 of vocab_size" in said


def named() -> list[tuple[str, str, Any]]:
    zeros = [(family, name, 0) for family, names in ZEROS.items() for name in names]
    nulls = [(family, name, None) for family, names in NULLS.items() for name in names]
    return zeros + nulls + OTHERS


@pytest.mark.parametrize(("family", "name", "value"), named())
def test_a_number_of_which_no_layer_is_made(
    family: str, name: str, value: Any, tmp_path: Path
) -> None:
    changes = {name: value}
    if name == "partial_rotary_factor":
        changes = {"rope_parameters": ROPE | changes}
    said = refusal(family, tmp_path, **changes)
    assert name in said
    assert str(value) in said or name == "layer_types"


@pytest.mark.parametrize(("family", "changes"), UNREADABLE)
def test_a_value_that_is_read_as_what_it_is_not(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """There are more of these than of checks: what was raised is told, with the family."""
    said = refusal(family, tmp_path, **changes)
    assert said.startswith(f"config.json: no layers of {own_config(family).model_type} can be made")
    assert "Error: " in said
    assert said.endswith("give a config as its authors published it")


def test_experts_without_counts(tmp_path: Path) -> None:
    said = refusal("gemma4", tmp_path, enable_moe_block=True)
    assert "num_experts must be a number, got None" in said


def test_key_heads_of_a_layer_that_do_not_divide(tmp_path: Path) -> None:
    changed = {"head_dim": 16, "num_key_value_heads": 3}
    said = refusal("gemma4", tmp_path, per_layer_config={"1": changed, "3": changed})
    assert "3 key heads of layer 1 do not divide the 4 of num_attention_heads" in said


@pytest.mark.parametrize("family", ["granite", "falcon_h1"])
def test_step_sizes_without_limits(family: str) -> None:
    config = config_of(family)
    config.time_step_limit = None
    spec = decoder_spec(config)
    spaces = [own for layer in spec.layers for sub in layer.sublayers for own in spaces_of(sub)]
    assert spaces
    assert all(space.dt_limits == (0.0, math.inf) for space in spaces)


def spaces_of(sublayer: object) -> list[StateSpace]:
    parts = (sublayer, *getattr(sublayer, "mixers", ()))
    return [part for part in parts if isinstance(part, StateSpace)]
