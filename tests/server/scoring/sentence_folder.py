"""Folders of modules as sentence-transformers saves them, by a description of its file format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

LAST = {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
MEAN = {"pooling_mode_lasttoken": False, "pooling_mode_mean_tokens": True}
_NN = "torch.nn.modules"
ACTIVATIONS: dict[str, torch.nn.Module] = {
    f"{_NN}.linear.Identity": torch.nn.Identity(),
    f"{_NN}.activation.Tanh": torch.nn.Tanh(),
    f"{_NN}.activation.ReLU": torch.nn.ReLU(),
}


def write_modules(folder: Path, kinds: list[str], **pooling: Any) -> list[Path]:
    """Write `modules.json` and the pooling's configuration; returns the modules' folders."""
    folder.mkdir(exist_ok=True)
    modules, folders = [], []
    for index, kind in enumerate(kinds):
        own = "" if index == 0 else f"{index}_{kind}"
        modules.append({"idx": index, "path": own, "type": f"sentence_transformers.models.{kind}"})
        folders.append(folder / own)
        folders[-1].mkdir(exist_ok=True)
        if kind == "Pooling":
            config = {"word_embedding_dimension": 4, **pooling}
            (folders[-1] / "config.json").write_text(json.dumps(config))
    (folder / "modules.json").write_text(json.dumps(modules))
    return folders


def write_dense(
    folder: Path, linear: torch.nn.Linear, activation: str = f"{_NN}.linear.Identity", **config: Any
) -> None:
    """Write a Dense module's configuration and tensors, in the type of `linear`."""
    fields = {
        "in_features": linear.in_features,
        "out_features": linear.out_features,
        "bias": linear.bias is not None,
        "activation_function": activation,
    }
    (folder / "config.json").write_text(json.dumps(fields | config))
    tensors = {f"linear.{name}": tensor for name, tensor in linear.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
