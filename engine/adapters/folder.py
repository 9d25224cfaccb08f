"""Reads an adapter's folder: A and B of each module that it adapts, and a hash of all of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from engine.adapters.config import CONFIG, MERGE, AdapterConfig, read_config
from engine.errors import AdapterError, first_line

WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
TENSOR = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+?)\."
    r"(?:lora_(?P<half>[AB])(?:\.[^.]+)?\.weight|lora_embedding_(?P<embedding>[AB])(?:\.[^.]+)?)"
)
"""Names of tensors: those of linear modules, and those of embeddings, whose names end earlier. An
adapter's own name may come before the end."""
OF_BASE = re.compile(r"\.base_layer\.|(?:embed_tokens|lm_head)\.weight$")
"""Tensors of the base, which PEFT saves beside an adapter of embeddings."""


class Factors(NamedTuple):
    """What an adapter adds to a module's weight: scale * b @ a.

    Attributes:
        a: [r, in]. b: [out, r].
    """

    a: torch.Tensor
    b: torch.Tensor
    scale: float


class AdapterTensors(NamedTuple):
    """An adapter as it is read.

    Attributes:
        folder: for errors.
        modules: by their names in the adapter.
        digest: a hash of the configuration and all tensors.
    """

    folder: Path
    modules: Mapping[str, Factors]
    digest: bytes


def read_adapter(folder: Path, max_rank: int) -> AdapterTensors:
    """Read an adapter.

    Raises:
        AdapterError: it cannot be served; the message names the file, tensor or field.
    """
    if not folder.is_dir():
        raise AdapterError(f"adapter {str(folder)!r} is not a folder")
    config = read_config(folder, max_rank)
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise AdapterError(f"{folder} has neither {WEIGHTS[0]} nor {WEIGHTS[1]}")
    halves = _halves(path, _tensors(path))
    config.check_targets(halves)
    modules = {module: _factors(path, module, own, config) for module, own in halves.items()}
    if not modules:
        raise AdapterError(f"{path} has no tensors of an adapter")
    digest = hashlib.blake2b((folder / CONFIG).read_bytes(), digest_size=16)
    digest.update(path.read_bytes())
    return AdapterTensors(folder, modules, digest.digest())


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            tensors: dict[str, torch.Tensor] = load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # each library has its own
        raise AdapterError(f"{path} is not readable: {first_line(error)}; save it anew") from error
    return tensors


def _halves(path: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """A and B of each module."""
    halves: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        match = TENSOR.fullmatch(name)
        if match is None:
            if OF_BASE.search(name):
                continue
            raise AdapterError(f"{path}: tensor {name!r} is not served; {MERGE}")
        if match["embedding"]:
            raise AdapterError(
                f"{path}: tensor {name!r}: adapters of embeddings are not served; {MERGE}"
            )
        halves.setdefault(match["module"], {})[match["half"]] = tensor
    return halves


def _factors(
    path: Path, module: str, halves: Mapping[str, torch.Tensor], config: AdapterConfig
) -> Factors:
    for half in ("A", "B"):
        if half not in halves:
            raise AdapterError(f"{path}: {module!r} has no lora_{half}; save the adapter anew")
    a, b, rank = halves["A"], halves["B"], config.rank_of(module)
    for name, tensor, dim in (("lora_A", a, 0), ("lora_B", b, 1)):
        shape = list(tensor.shape)
        if tensor.dim() != 2 or shape[dim] != rank:
            raise AdapterError(
                f"{path}: {name} of {module!r} has shape {shape}, and its rank is {rank} by "
                f"{CONFIG}; save the adapter anew"
            )
        if not tensor.isfinite().all():
            raise AdapterError(f"{path}: {name} of {module!r} has values that are not finite")
    return Factors(a, b, config.scale_of(module))
