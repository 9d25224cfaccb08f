"""Heads of configs that tie, where the checkpoint holds one as well, against transformers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from engine.contracts.model import CausalLM
from sampling.device.ranks import LoneRank
from tests.engine.models.families.hybrid_models import config_of
from tests.engine.models.families.shard_models import MODELS as DIVIDED
from tests.engine.models.families.shard_models import logits_of
from tests.engine.models.serving import GROUPED, assert_same_logits, load, write_tiny
from tests.engine.models.small_models import MODELS
from tests.sampling.ranks import on_ranks

HEAD = "lm_head.weight"
OWN = "the LM head is the checkpoint's own"


def add_head(folder: Path, factor: float, dtype: torch.dtype = torch.float32) -> None:
    """Store a head of the embeddings times a factor, rounded to a type."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[HEAD] = (tensors["model.embed_tokens.weight"] * factor).to(dtype)
    save_file(tensors, path, metadata={"format": "pt"})


def has_own_head(model: CausalLM) -> bool:
    return HEAD in dict(model.named_weights())


@pytest.mark.parametrize("name", ["llama-tied", "gemma2"])
def test_a_head_that_differs_is_used(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tiny(MODELS[name], tmp_path)
    add_head(tmp_path, -0.7)
    reference = hf.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    with caplog.at_level(logging.INFO):
        model = load(tmp_path, model_impl="fused")
    assert caplog.text.count(OWN) == 1
    assert has_own_head(model)
    assert_same_logits(model, reference.eval())


def test_a_head_that_is_the_embeddings_stays_tied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference = write_tiny(MODELS["llama-tied"], tmp_path)
    add_head(tmp_path, 1.0)
    with caplog.at_level(logging.INFO):
        model = load(tmp_path)
    assert OWN not in caplog.text
    assert not has_own_head(model)
    assert_same_logits(model, reference)


def test_heads_are_compared_in_the_models_dtype(tmp_path: Path) -> None:
    write_tiny(MODELS["llama-tied"], tmp_path)
    add_head(tmp_path, 1.0, torch.bfloat16)
    assert has_own_head(load(tmp_path, dtype="float32"))
    assert not has_own_head(load(tmp_path, dtype="bfloat16"))


def write_nested(folder: Path, tie: dict[str, bool], of_text: bool, factor: float | None) -> Any:
    """A text in a checkpoint with images, and a head beside the embeddings or none."""
    text = hf.Ministral3Config(**GROUPED, head_dim=16, tie_word_embeddings=True)
    write_tiny(text, folder)
    if factor is not None:
        add_head(folder, factor)
    reference = hf.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    path = folder / "config.json"
    content = json.loads(path.read_text())
    nested = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "text_config": content | {"tie_word_embeddings": of_text},
        **tie,
    }
    path.write_text(json.dumps(nested))
    return reference.eval()


@pytest.mark.parametrize(
    ("tie", "of_text", "factor", "is_own"),
    [
        ({"tie_word_embeddings": True}, False, None, False),
        ({"tie_word_embeddings": True}, False, -0.7, True),
        ({"tie_word_embeddings": False}, True, -0.7, True),
        ({"tie_word_embeddings": False}, True, 1.0, True),
        ({"tie_word_embeddings": False}, True, None, False),  # there is nothing else
        ({}, True, None, False),
        ({}, True, 1.0, False),
        ({}, False, None, False),  # transformers ties what does not say
        ({}, False, -0.7, True),
    ],
)
def test_the_whole_models_config_says_first(
    tie: dict[str, bool], of_text: bool, factor: float | None, is_own: bool, tmp_path: Path
) -> None:
    reference = write_nested(tmp_path, tie, of_text, factor)
    model = load(tmp_path, model_impl="fused")
    assert has_own_head(model) == is_own
    assert_same_logits(model, reference)


@pytest.mark.parametrize(
    ("tie", "of_text", "is_own"),
    [
        ({"tie_word_embeddings": True}, False, False),
        ({"tie_word_embeddings": False}, True, True),
        ({}, True, False),
        ({}, False, True),
    ],
)
def test_random_weights(tie: dict[str, bool], of_text: bool, is_own: bool, tmp_path: Path) -> None:
    write_nested(tmp_path, tie, of_text, None)
    assert has_own_head(load(tmp_path, load_format="dummy", model_impl="fused")) == is_own


def test_a_head_that_is_never_tied_has_random_weights_of_its_own(tmp_path: Path) -> None:
    config = config_of("nemotron_h")
    config.tie_word_embeddings, config.architectures = True, ["NemotronHForCausalLM"]
    config.save_pretrained(tmp_path)
    assert has_own_head(load(tmp_path, load_format="dummy"))


def test_ranks_divide_a_head_that_differs(tmp_path: Path) -> None:
    write_tiny(DIVIDED["tied"], tmp_path)
    tied = logits_of(tmp_path, LoneRank())
    add_head(tmp_path, -0.7)
    parts = on_ranks(2, lambda exchange: logits_of(tmp_path, exchange))
    torch.testing.assert_close(torch.cat(parts, dim=1), -0.7 * tied, rtol=0, atol=1e-4)
