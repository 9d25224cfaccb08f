"""A config of which no decoder can be made is refused in one line, whatever is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from engine.config import ModelConfig
from engine.errors import ModelError
from engine.models.loader import load_model
from tests.engine.models.families.hybrid_models import FAMILIES, config_of
from tests.engine.models.small_models import MODELS

ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}


def own_config(family: str) -> PreTrainedConfig:
    """The config of a small model, where this transformers has its family."""
    if family in FAMILIES:
        return config_of(family)
    if family not in MODELS:
        pytest.skip(f"transformers has no {family}")
    return MODELS[family]


def refusal(family: str, folder: Path, **changes: Any) -> str:
    """What a start with random weights says of a config with other values."""
    config = own_config(family)
    content = config.to_dict() | changes
    content["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
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
