"""Models whose weights are written by name: another checkpoint of the same shapes, and its bits."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from engine.contracts.model import CausalLM, ModelInputs
from engine.contracts.named_weights import NamedWeights
from engine.memory.states import text_states
from engine.models.reference import attention_of_text
from engine.models.weights.registry import FIXED

Tensors = dict[str, torch.Tensor]
NUM_TOKENS = 24


def stored_tensors(folder: Path) -> Tensors:
    """All tensors of a checkpoint."""
    tensors: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def write_other(folder: Path, other: Path, kept: Collection[str] = ()) -> Tensors:
    """Write a checkpoint with the same numbers in other places, and return its tensors.

    What lays others out, or is compiled into products, stays, and so does what is `kept`.
    """
    shutil.copytree(folder, other)
    for path in other.glob("*.safetensors"):
        path.unlink()
    (other / "model.safetensors.index.json").unlink(missing_ok=True)
    generator = torch.Generator().manual_seed(7)
    tensors = {
        name: tensor
        if name in kept or name.endswith((*FIXED, "d2t"))
        else _moved(tensor, generator)
        for name, tensor in sorted(stored_tensors(folder).items())
    }
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    return tensors


def _moved(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if tensor.numel() == 1:
        return tensor * 1.25
    words = tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor
    order = torch.randperm(tensor.numel(), generator=generator)
    return words.flatten()[order].view(words.shape).view(tensor.dtype).contiguous()


def write_in_pieces(named: NamedWeights, tensors: Tensors, seed: int = 0) -> None:
    """Write tensors by name, in any order: some alone, some with others of their unit."""
    generator = torch.Generator().manual_seed(seed)
    names = sorted(tensors.keys() & named.keys())
    for index in torch.randperm(len(names), generator=generator).tolist():
        name = names[index]
        if index % 3:
            named[name].write(tensors[name])
            continue
        unit = named[name].unit
        whole = {each.own_name: tensors[n] for n, each in named.items() if each.unit is unit}
        unit.write(whole)


def lose(named: NamedWeights) -> None:
    """Lose what writes of all weights bring back, as a sleep at level 2 does."""
    for tensor in named.written():
        tensor.zero_()


def assert_regained(model: CausalLM, tensors: Tensors) -> None:
    """Assert that what is lost without the weights is back once they are written.

    Whatever else a model has, as tables of angles and orders of inputs, is not lost.
    """
    named, wanted = model.named_weights(), text_logits(model)
    lose(named)
    assert not torch.equal(text_logits(model), wanted)
    write_in_pieces(named, tensors, seed=1)
    assert torch.equal(text_logits(model), wanted)


@torch.inference_mode()
def text_logits(model: CausalLM, num_tokens: int = NUM_TOKENS) -> torch.Tensor:
    """A model's logits of a text, in one forward [num_tokens, width]."""
    ids = (torch.arange(num_tokens) * 7919 + 13) % 89
    attention = attention_of_text(model.attention_specs, model.dtype, model.device, num_tokens)
    states = text_states(model.state_specs(0), model.device)(0, num_tokens)
    positions = torch.arange(num_tokens, device=model.device)
    inputs = ModelInputs(ids.int().to(model.device), positions, attention, states)
    return model.logits(model.forward(inputs).final)


def assert_holds(named: NamedWeights, tensors: Tensors) -> None:
    """Assert that a model's weights are a checkpoint's, in the types that it has them in."""
    assert named.keys() <= tensors.keys()
    for name, weight in named.items():
        wanted, held = tensors[name], weight.read()
        assert weight.shape == held.shape == wanted.shape, name
        assert weight.dtype == held.dtype == wanted.dtype, name
        assert torch.equal(_bytes(held.cpu()), _bytes(wanted)), name


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
