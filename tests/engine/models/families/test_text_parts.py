"""Texts of checkpoints that take images too, whose tensors and configs are nested."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Ministral3Config, Mistral3Config

from engine.errors import ModelError
from engine.models.families.table import decoder_spec
from tests.engine.models.serving import GROUPED, assert_same_logits, load, write_tiny


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_mistral3(prefix: str, tmp_path: Path) -> None:
    text = Ministral3Config(**GROUPED, head_dim=16)
    reference = write_tiny(text, tmp_path)
    head = {"language_model.model.": "language_model.lm_head."}.get(prefix, "lm_head.")
    tensors = {
        name.replace("model.", prefix, 1).replace("lm_head.", head): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    tensors["vision_tower.patch_conv.weight"] = torch.zeros(2)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    architectures = ["Mistral3ForConditionalGeneration"]
    Mistral3Config(text_config=text.to_dict(), architectures=architectures).save_pretrained(
        tmp_path
    )
    assert_same_logits(load(tmp_path, model_impl="fused"), reference)


def test_a_text_that_is_not_served_is_refused_by_name() -> None:
    config = Mistral3Config(text_config={"model_type": "llama"})
    with pytest.raises(ModelError, match="text_config has model_type 'llama', which is not served"):
        decoder_spec(config)
