"""Checkpoints of hybrid families as they are published, and what of them is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5Config

from engine.config import ModelConfig
from engine.errors import ModelError
from engine.models.families.config import NotFusedError
from engine.models.families.table import decoder_spec
from engine.models.loader import load_model
from engine.startup.error_statement import hidden_states
from tests.engine.models.families.hybrid_models import config_of, write_hybrid

CPU = torch.device("cpu")
IDS = torch.arange(3, 40)


def hidden(folder: Path) -> torch.Tensor:
    model = load_model(ModelConfig(model=str(folder), dtype="float32"), CPU)
    return hidden_states(model, IDS, None)


def test_the_text_of_a_checkpoint_with_images(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tensors have other beginnings, images and drafts have theirs, and the config is nested."""
    text = config_of("qwen3_5")
    write_hybrid(text, tmp_path)
    wanted = hidden(tmp_path)
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    tensors |= {"model.visual.patch_embed.proj.weight": torch.zeros(2), "mtp.fc.weight": IDS}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    own = Qwen3_5Config(
        text_config=text.to_dict(), architectures=["Qwen3_5ForConditionalGeneration"]
    )
    own.save_pretrained(tmp_path)
    with caplog.at_level(logging.INFO):
        assert torch.equal(hidden(tmp_path), wanted)
    assert "served as its text part" in caplog.text


def test_experts_in_one_tensor(tmp_path: Path) -> None:
    write_hybrid(config_of("qwen3_5_experts"), tmp_path)
    wanted = hidden(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for layer in range(4):
        prefix = f"model.layers.{layer}.mlp.experts"
        parts = {
            part: [tensors.pop(f"{prefix}.{expert}.{part}.weight") for expert in range(6)]
            for part in ("gate_proj", "up_proj", "down_proj")
        }
        pairs = zip(parts["gate_proj"], parts["up_proj"], strict=True)
        tensors[f"{prefix}.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in pairs])
        tensors[f"{prefix}.down_proj"] = torch.stack(parts["down_proj"])
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(hidden(tmp_path), wanted)


def test_a_layer_kind_that_a_family_lacks_is_refused_by_name() -> None:
    config = config_of("lfm2")
    config.layer_types = ["conv", "recurrent", "conv", "conv"]
    with pytest.raises(ModelError, match="layer_types has 'recurrent' at layer 1, which is not"):
        decoder_spec(config)


@pytest.mark.parametrize("family", ["falcon_h1", "lfm2", "olmo_hybrid"])
def test_rotations_of_half_a_head_are_refused(family: str) -> None:
    """transformers pairs the first lanes of a head there, our rows those of whole heads."""
    config = config_of(family)
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4}
    assert decoder_spec(config)
    config.rope_parameters |= {"partial_rotary_factor": 0.5}
    with pytest.raises(NotFusedError, match=r"partial_rotary_factor 0\.5"):
        decoder_spec(config)
