"""Weights of transformers' modules by the names that checkpoints have for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from engine.models.fallback.model import FallbackModel
from tests.engine.models.fallback.fallback_models import GPT_SIZES, MODELS
from tests.engine.models.rewriting import (
    assert_holds,
    assert_regained,
    stored_tensors,
    text_logits,
    write_in_pieces,
    write_other,
)
from tests.engine.models.serving import load, write_tiny


@pytest.mark.parametrize(
    "name", ["bloom", "deepseek_v3", "gemma3-images", "gpt2", "mixtral", "mpt", "opt", "phi"]
)
def test_modules_are_rewritten(name: str, tmp_path: Path) -> None:
    """Experts, which transformers joins as it loads them, heads that are tied, and buffers."""
    write_tiny(MODELS[name], tmp_path / "old")
    model = load(tmp_path / "old", model_impl="transformers")
    assert isinstance(model, FallbackModel)
    named, old = model.named_weights(), stored_tensors(tmp_path / "old")
    assert named.keys() == old.keys()
    assert_holds(named, old)
    new = write_other(tmp_path / "old", tmp_path / "new")
    wanted = text_logits(load(tmp_path / "new", model_impl="transformers"))
    assert not torch.equal(text_logits(model), wanted)
    write_in_pieces(named, new)
    assert torch.equal(text_logits(model), wanted)
    assert_holds(named, new)
    assert_regained(model, new)


def test_a_checkpoint_without_the_prefix_of_its_base_model(tmp_path: Path) -> None:
    """As GPT-2 is published."""
    write_tiny(hf.GPT2Config(**GPT_SIZES), tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {k.removeprefix("transformer."): v for k, v in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})
    model = load(tmp_path)
    assert model.named_weights().keys() == tensors.keys()
    assert_holds(model.named_weights(), tensors)


def test_random_weights_have_the_module_s_names(tmp_path: Path) -> None:
    write_tiny(MODELS["bloom"], tmp_path)
    names = stored_tensors(tmp_path).keys()
    assert load(tmp_path, load_format="dummy").named_weights().keys() == names
