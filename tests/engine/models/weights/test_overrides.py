"""Values of a config that flags replace, and RoPE scaled by them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from demo import MODEL_FOLDER
from engine.config import ModelConfig
from engine.errors import ModelError
from engine.models.expected import max_position
from engine.models.model_config import read_config
from engine.models.weights.overrides import overridden, refused_rope

YARN = {"rope_type": "yarn", "factor": 4.0}
OLD = {"max_position_embeddings": 64, "rope_theta": 5e5}
NEW = {
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
}


def test_objects_are_merged_and_the_rest_is_replaced() -> None:
    config = {"a": {"b": 1, "c": [1]}, "d": 2}
    assert overridden(config, {"a": {"c": [2]}, "d": {"e": 3}}) == {
        "a": {"b": 1, "c": [2]},
        "d": {"e": 3},
    }
    assert config == {"a": {"b": 1, "c": [1]}, "d": 2}


@pytest.mark.parametrize("config", [OLD, NEW])
def test_yarn_keeps_the_base_and_stretches_the_positions(config: dict[str, Any]) -> None:
    found = overridden(config, {"rope_scaling": YARN})
    assert found["max_position_embeddings"] == 256
    assert found["rope_scaling"] == {
        **YARN,
        "original_max_position_embeddings": 64,
        "rope_theta": 5e5,
    }
    assert "rope_parameters" not in found


def test_positions_that_are_given_stay() -> None:
    given = {"rope_scaling": YARN, "max_position_embeddings": 100}
    assert overridden(OLD, given)["max_position_embeddings"] == 100
    own = YARN | {"original_max_position_embeddings": 32}
    assert overridden(OLD, {"rope_scaling": own})["max_position_embeddings"] == 128
    llama3 = {"type": "llama3", "factor": 8.0}
    found = overridden(OLD, {"rope_scaling": llama3})
    assert (found["max_position_embeddings"], found["rope_scaling"]["rope_type"]) == (64, "llama3")


def test_the_config_of_the_text() -> None:
    found = overridden({"text_config": OLD}, {"rope_scaling": YARN})
    assert found["text_config"]["max_position_embeddings"] == 256
    assert "rope_scaling" not in found


def test_frequencies_are_those_of_a_checkpoint_that_says_so() -> None:
    """As transformers computes them of a config that had the scaling all along."""
    read = read_config(MODEL_FOLDER, False, overrides={"rope_scaling": YARN})
    whole = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        head_dim=64,
        max_position_embeddings=8192,
        rope_parameters={
            **YARN,
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 2048,
        },
    )
    made = [ROPE_INIT_FUNCTIONS["yarn"](each, torch.device("cpu")) for each in (read, whole)]
    torch.testing.assert_close(made[0][0], made[1][0], rtol=0, atol=0)
    assert made[0][1] == made[1][1] != 1.0
    model = ModelConfig(model=str(MODEL_FOLDER), hf_overrides={"rope_scaling": YARN})
    assert max_position(model) == 8192


def test_what_transformers_refuses() -> None:
    with pytest.raises(ModelError, match="--hf-overrides"):
        read_config(MODEL_FOLDER, False, overrides={"model_type": "no_such_model"})


def test_scalings_are_those_of_transformers() -> None:
    for kind in ("default", *ROPE_INIT_FUNCTIONS):
        assert refused_rope({"rope_scaling": {"rope_type": kind}}) is None
        assert refused_rope({"rope_scaling": {"type": kind}}) is None
    for none in ({}, {"rope_scaling": None}, {"rope_scaling": {"factor": 2.0}}):
        assert refused_rope(none) is None


@pytest.mark.parametrize(
    ("rope", "why"),
    [
        ({"rope_type": "nope"}, "the type 'nope' is none of default, linear"),
        ({"type": ["yarn"]}, "is none of"),
        ("yarn", "must be an object"),
    ],
)
def test_what_is_no_scaling_is_refused(rope: Any, why: str) -> None:
    refused = refused_rope({"rope_scaling": rope})
    assert refused is not None
    assert why in refused
