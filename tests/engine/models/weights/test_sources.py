from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, LlamaConfig

from engine.errors import ModelError
from engine.models.weights.sources import Checkpoint, DummyWeights, weight_files
from tests.engine.models.serving import GROUPED, VOCAB, load, serve, some_ids, write_tiny

NORM = "model.layers.1.input_layernorm.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny(LlamaConfig(**GROUPED), tmp_path)
    return tmp_path


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace, add or (None) drop tensors; dots are double underscores."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if tensor is not None:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("impl", ["fused", "transformers"])
def test_a_missing_tensor(folder: Path, impl: str) -> None:
    rewrite(folder, **{NORM.replace(".", "__"): None})
    with pytest.raises(ModelError, match=f"{folder}.* has no tensor '{NORM}'"):
        load(folder, model_impl=impl)


@pytest.mark.parametrize("impl", ["fused", "transformers"])
def test_a_tensor_of_another_shape(folder: Path, impl: str) -> None:
    rewrite(folder, **{NORM.replace(".", "__"): torch.ones(33)})
    message = rf"{folder}.*'{NORM}' has shape \[33\], the config asks for \[32\]"
    with pytest.raises(ModelError, match=message):
        load(folder, model_impl=impl)


@pytest.mark.parametrize("impl", ["fused", "transformers"])
def test_a_tensor_too_many(folder: Path, impl: str) -> None:
    rewrite(folder, extra__weight=torch.ones(2))
    with pytest.raises(ModelError, match=r"'extra\.weight' has no place in this architecture"):
        load(folder, model_impl=impl)


def test_what_old_checkpoints_carry_is_ignored(folder: Path) -> None:
    expected = serve(load(folder), some_ids())
    rewrite(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(4))
    assert torch.equal(serve(load(folder), some_ids()), expected)


def test_a_tied_checkpoint_may_carry_its_head(tmp_path: Path) -> None:
    write_tiny(LlamaConfig(**GROUPED, tie_word_embeddings=True), tmp_path)
    expected = serve(load(tmp_path), some_ids())
    head = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    rewrite(tmp_path, lm_head__weight=head)
    assert torch.equal(serve(load(tmp_path), some_ids()), expected)


@pytest.mark.parametrize("impl", ["fused", "transformers"])
def test_no_weights(folder: Path, impl: str) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has no weights"):
        load(folder, model_impl=impl)


def test_pickles_are_refused_by_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: pickled weights are not loaded"):
        load(folder)


def test_a_file_that_is_no_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not one")
    message = r"model\.safetensors is not a readable safetensors file: .*; download the checkpoint"
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_a_shard_the_index_names_but_nobody_wrote(tmp_path: Path) -> None:
    write_tiny(LlamaConfig(**GROUPED), tmp_path, max_shard_size="20KB")
    first = weight_files(tmp_path)[0]
    first.unlink()
    with pytest.raises(ModelError, match=f"has no {first.name}, which"):
        load(tmp_path)


@pytest.mark.parametrize("length", [0, 50, -100])
def test_a_file_that_was_cut_off(length: int, folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ModelError, match=rf"{path} is not .*; download the checkpoint anew$"):
        load(folder)


@pytest.mark.parametrize("index", [{"metadata": {}}, {"weight_map": {"a": 3}}])
def test_an_index_without_a_map(index: dict[str, Any], folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="has no weight_map"):
        load(folder)


def test_tensors_are_converted_as_they_are_read(folder: Path) -> None:
    source = Checkpoint(folder)
    wide, narrow = torch.empty(32), torch.empty(32, dtype=torch.bfloat16)
    source.fill(wide, NORM)
    source.fill(narrow, NORM)
    assert torch.equal(narrow, wide.to(torch.bfloat16))


def test_dummy_weights() -> None:
    def draw() -> list[torch.Tensor]:
        source = DummyWeights(0.02, torch.device("cpu"))
        tensors = [torch.empty(200, 300), torch.empty(8), torch.empty(8)]
        for tensor, name in zip(tensors, ("q.weight", "x_norm.weight", "q.bias"), strict=True):
            source.fill(tensor, name)
        return tensors

    weight, norm, bias = draw()
    assert torch.equal(draw()[0], weight)
    assert weight.std() == pytest.approx(0.02, rel=0.02)
    assert torch.equal(norm, torch.ones(8))
    assert torch.equal(bias, torch.zeros(8))


@pytest.mark.parametrize(
    "config", [LlamaConfig(**GROUPED), GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4)]
)
def test_a_dummy_model_needs_a_config_alone(
    config: LlamaConfig | GPT2Config, tmp_path: Path
) -> None:
    config.architectures = [
        "LlamaForCausalLM" if config.model_type == "llama" else "GPT2LMHeadModel"
    ]
    config.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    model = load(tmp_path, load_format="dummy")
    assert serve(model, some_ids()).std() > 0
