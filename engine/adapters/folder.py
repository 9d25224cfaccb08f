"""Reads an adapter: A and B of each module that it changes, and a hash of all of it."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load

from engine.adapters.config import CONFIG, MERGE, AdapterConfig, read_config
from engine.contracts.adapters import AdapterSource
from engine.errors import AdapterError, first_line
from engine.models.weights.finite import is_finite

WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
TENSOR = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+?)\."
    r"(?:lora_(?P<half>[AB])(?:\.[^.]+)?\.weight|lora_embedding_(?P<embedding>[AB])(?:\.[^.]+)?)"
)
"""Names of tensors: those of linear modules, and those of embeddings, whose names end earlier. An
adapter's own name may come before the end."""
OF_BASE = re.compile(r"\.base_layer\.|(?:embed_tokens|embeddings|lm_head)\.weight$")
"""Tensors of the base, which PEFT saves beside an adapter of embeddings."""


class Factors(NamedTuple):
    """What an adapter adds to a module's weight: scale * b @ a.

    Attributes:
        a: [r, in]. b: [out, r]. Of a tensor that holds all experts, [experts * r, in] and
            [out, r * experts].
        is_embedding: of ids, in = vocabulary. is_stacked: of a tensor that holds all experts.
    """

    a: torch.Tensor
    b: torch.Tensor
    scale: float
    is_embedding: bool = False
    is_stacked: bool = False


class AdapterTensors(NamedTuple):
    """An adapter as it is read.

    Attributes:
        folder: for errors.
        modules: by their names in the adapter; of tensors that hold all experts, by theirs.
        of_base: shapes of the base's tensors that are saved beside, by name.
        ties_head: as of `AdapterConfig`.
        digest: a hash of the configuration and all tensors.
    """

    folder: Path
    modules: Mapping[str, Factors]
    of_base: Mapping[str, tuple[int, ...]]
    ties_head: bool
    digest: bytes


OpenHandles = Callable[[bytes], Iterable[tuple[str, torch.Tensor]]]
"""Opens the tensors of another process by a pickle of their handles, as names and tensors."""


def no_handles(handles: bytes) -> Iterable[tuple[str, torch.Tensor]]:
    """Open nothing."""
    raise AdapterError("tensors of other processes are not read here")


def read_adapter(
    source: AdapterSource, max_rank: int, open_handles: OpenHandles = no_handles
) -> AdapterTensors:
    """Read an adapter.

    Raises:
        AdapterError: it cannot be served; the message names the file, tensor or field.
    """
    folder = Path(source.path)
    if not source.is_given and not folder.is_dir():
        raise AdapterError(f"adapter {source.path!r} is not a folder")
    text = source.config if source.is_given else _config_of(folder)
    config = read_config(folder / CONFIG, text, max_rank)
    path = folder / WEIGHTS[0] if source.is_given else _weights_of(folder)
    with ThreadPoolExecutor(1) as beside:  # hashing takes as long as all else
        if source.handles:
            tensors = _shared(path, open_handles(source.handles))
            hashed = beside.submit(_digest, text, _pieces(tensors))
        else:
            data = source.tensors or path.read_bytes()
            hashed = beside.submit(_digest, text, [data])
            tensors = _tensors(path, data)
        halves, of_base = _halves(path, tensors)
        modules = _modules(path, halves, config)
    if not modules:
        raise AdapterError(f"{path} has no tensors of an adapter")
    return AdapterTensors(folder, modules, of_base, config.ties_head, hashed.result())


def _digest(text: bytes, pieces: Iterable[bytes]) -> bytes:
    """A hash of a configuration and of tensors."""
    digest = hashlib.blake2b(text, digest_size=16)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def _pieces(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes]:
    """Names and tensors, in an order that does not depend on who sent them."""
    for name, tensor in sorted(tensors.items()):
        yield name.encode()
        yield tensor.contiguous().view(torch.uint8).numpy().tobytes()


def _shared(path: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Copies of another process's tensors, on the host."""
    try:
        return {name: tensor.to("cpu", copy=True) for name, tensor in tensors}
    except Exception as error:  # whatever a pickle holds
        raise AdapterError(f"{path}: tensors are not readable: {first_line(error)}") from error


def _config_of(folder: Path) -> bytes:
    try:
        return (folder / CONFIG).read_bytes()
    except FileNotFoundError as error:
        raise AdapterError(
            f"{folder} has no {CONFIG}; give a folder as PEFT's save_pretrained writes it"
        ) from error


def _weights_of(folder: Path) -> Path:
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise AdapterError(f"{folder} has neither {WEIGHTS[0]} nor {WEIGHTS[1]}")
    return path


def _tensors(path: Path, data: bytes) -> dict[str, torch.Tensor]:
    try:
        if path.suffix == ".safetensors":
            tensors: dict[str, torch.Tensor] = load(data)
        else:
            tensors = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # each library has its own
        raise AdapterError(f"{path} is not readable: {first_line(error)}; save it anew") from error
    return tensors


class _Halves(NamedTuple):
    """The halves of a module, "A" and "B"; those of an embedding, or of linear modules."""

    tensors: dict[str, torch.Tensor]
    is_embedding: bool


def _halves(
    path: Path, tensors: Mapping[str, torch.Tensor]
) -> tuple[dict[str, _Halves], dict[str, tuple[int, ...]]]:
    """A and B of each module, and the shapes of the base's tensors."""
    halves: dict[str, _Halves] = {}
    of_base: dict[str, tuple[int, ...]] = {}
    for name, tensor in tensors.items():
        match = TENSOR.fullmatch(name)
        if match is None:
            if not OF_BASE.search(name):
                raise AdapterError(f"{path}: tensor {name!r} is not served; {MERGE}")
            of_base[name] = tuple(tensor.shape)
            continue
        half = match["half"] or match["embedding"]
        own = halves.setdefault(match["module"], _Halves({}, match["embedding"] is not None))
        own.tensors[half] = tensor
    return halves, of_base


def _modules(
    path: Path, halves: Mapping[str, _Halves], config: AdapterConfig
) -> dict[str, Factors]:
    """The factors of each module, and of each parameter."""
    by_module: dict[str, list[str]] = {}  # PEFT wraps a module once more for each parameter
    for name in halves:
        by_module.setdefault(name.replace(".base_layer", ""), []).append(name)
    named = {module for module in by_module if config.names_module(module)}
    modules: dict[str, Factors] = {}
    for module, names in by_module.items():
        parameters = [] if module in named else config.parameters_of(module)
        if not parameters and len(names) == 1:
            named.add(module)  # refused where it is not named
            modules[module] = _factors(path, module, halves[names[0]], config)
            continue
        if len(names) != len(parameters):
            raise AdapterError(
                f"{path}: {module!r} has tensors of {len(names)} parameters, and target_parameters "
                f"of {CONFIG} names {len(parameters)}; save the adapter anew"
            )
        for wrapped, parameter in zip(
            sorted(names, key=len, reverse=True), parameters, strict=True
        ):
            full = module if parameter == "weight" else f"{module}.{parameter}"
            modules[full] = _factors(
                path, full, halves[wrapped], config, parameter=f"{module}.{parameter}"
            )
    config.check_targets(named, modules)
    return modules


def _factors(
    path: Path,
    module: str,
    halves: _Halves,
    config: AdapterConfig,
    parameter: str | None = None,
) -> Factors:
    """The factors of a module, or of a parameter that may hold those of all experts."""
    prefix = "lora_embedding_" if halves.is_embedding else "lora_"
    for half in ("A", "B"):
        if half not in halves.tensors:
            raise AdapterError(f"{path}: {module!r} has no {prefix}{half}; save the adapter anew")
    a, b = halves.tensors["A"], halves.tensors["B"]
    rank, scale = config.rank_of(parameter or module), config.scale_of(parameter or module)
    ranks = rank
    if parameter is not None and a.dim() == 2 and a.shape[0] % rank == 0:
        ranks = a.shape[0]
    for name, tensor, dim in ((f"{prefix}A", a, 0), (f"{prefix}B", b, 1)):
        shape = list(tensor.shape)
        if tensor.dim() != 2 or shape[dim] != ranks:
            raise AdapterError(
                f"{path}: {name} of {module!r} has shape {shape}, and its rank is {rank} by "
                f"{CONFIG}; save the adapter anew"
            )
        if not is_finite(tensor):
            raise AdapterError(f"{path}: {name} of {module!r} has values that are not finite")
    is_stacked = parameter is not None and (ranks > rank or not parameter.endswith(".weight"))
    return Factors(a, b, scale, halves.is_embedding, is_stacked)
