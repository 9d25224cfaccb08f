"""Sources of weights: safetensors files read lazily, or random weights for a config alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.contracts.named_weights import TensorInfo
from engine.errors import ModelError, first_line
from engine.models.weights.folder import INDEX, read_json
from engine.models.weights.shares import OwnedPart
from engine.models.weights.stored import TORCH_TYPES, Asked, StoredTensors
from engine.progress import report

IGNORED = re.compile(
    r"rotary_emb\.inv_freq$|\.[qkv]_(proj\.)?(scale|zero_point|output_scale)$|\.kv_scale$"
    r"|\.(prob_output_scale|input_scale_ub|weight_shape)$"
)
"""Tensors that are not asked for: angles, which old checkpoints have and the config gives, and what
quantized checkpoints have beside their weights; scales of keys and values belong to a cache in
float8."""

ANEW = "download the checkpoint anew"
OTHER_CONFIG = "give the config.json that the checkpoint was written with"
"""What to do about a file, and about a tensor, that is not as it must be."""

LAYER = re.compile(r"model\.layers\.(\d+)\.")
DUMMY_SEED = 0


class Checkpoint:
    """Reads the tensors of a folder's safetensors files and converts them as they are filled.

    Args:
        ignore: names that need not be asked for.
        num_layers: layers from this one on need not be, which draft further tokens; None: all must.
        renamed: parts of names, and what they are called here. Names are as asked for then.
        unread: beginnings of the names of others that need not be asked for.

    Raises:
        ModelError: a file or tensor is missing, has another shape, or was never asked for.
    """

    def __init__(
        self,
        folder: Path,
        ignore: frozenset[str] = frozenset(),
        num_layers: int | None = None,
        *,
        renamed: Sequence[tuple[str, str]] = (),
        unread: tuple[str, ...] = (),
    ) -> None:
        self._folder = folder
        self._files: dict[Path, Any] = {}
        self._where: dict[str, Path] = {}
        self.asked: Asked = {}
        self._stored_names: dict[str, str] = {}
        for path in weight_files(folder):
            for stored in self._open(path).keys():  # noqa: SIM118 (not a dictionary)
                name = _renamed(stored, renamed)
                self._where[name], self._stored_names[name] = path, stored
        self._unread = {
            name
            for name in self._where
            if name not in ignore and not IGNORED.search(name) and not name.startswith(unread)
        }
        if num_layers is not None:
            drafting = {
                n for n in self._unread if (m := LAYER.match(n)) and int(m[1]) >= num_layers
            }
            self._unread -= drafting

    def fill(self, target: torch.Tensor, name: str) -> None:
        self._check_shape(name, tuple(target.shape))
        target.copy_(self.stored(name))

    def fill_part(self, target: torch.Tensor, name: str, part: OwnedPart) -> None:
        self._check_shape(name, part.whole_shape(target.shape))
        stored = self._slice(name)
        for each, own in zip(part.split(target), part.slices(), strict=True):
            each.copy_(stored[own])
        self._note(name)

    def stored(self, name: str) -> torch.Tensor:
        """Read a tensor as it is stored, on the CPU."""
        self._check_exists(name)
        tensor: torch.Tensor = self._open(self._where[name]).get_tensor(self._stored_names[name])
        self._note(name)
        return tensor

    def stored_type(self, name: str) -> str:
        kind: str = self._slice(name).get_dtype()
        return kind

    def types(self) -> dict[str, torch.dtype]:
        """The types of all tensors."""
        return {name: TORCH_TYPES[self.stored_type(name)] for name in self._where}

    def place(self, name: str) -> Path:
        return self._where.get(name, self._folder)

    def shape(self, name: str) -> tuple[int, ...] | None:
        if name not in self._where:
            return None
        return tuple(self._slice(name).get_shape())

    def stored_name(self, name: str) -> str:
        return self._stored_names.get(name, name)

    def stored_module(self, module: str) -> str:
        for name in ("weight", "qweight", "weight_packed"):
            stored = self._stored_names.get(f"{module}.{name}")
            if stored is not None:
                return stored.removesuffix(f".{name}")
        return module

    @property
    def checkpoint(self) -> Checkpoint:
        return self

    def close(self) -> None:
        """Let go of the files; they are opened anew where more is read."""
        self._files.clear()

    def finish(self) -> None:
        """End the reading: all tensors were asked for."""
        self.close()
        if self._unread:
            name = min(self._unread)
            others = f" (and {len(self._unread) - 1} others)" if len(self._unread) > 1 else ""
            raise ModelError(
                f"{self._where[name]}: tensor {name!r}{others} has no place in this architecture; "
                f"{OTHER_CONFIG}"
            )

    def _note(self, name: str) -> None:
        """Note that a tensor was read."""
        self.asked[name] = TensorInfo(self.shape(name) or (), TORCH_TYPES[self.stored_type(name)])
        self._unread.discard(name)
        report(len(self._where) - len(self._unread), len(self._where))

    def _check_shape(self, name: str, wanted: tuple[int, ...]) -> None:
        self._check_exists(name)
        if (shape := self.shape(name)) != wanted:
            raise ModelError(
                f"{self._where[name]}: tensor {name!r} has shape {list(shape or ())}, "
                f"the config asks for {list(wanted)}; {OTHER_CONFIG}"
            )

    def _check_exists(self, name: str) -> None:
        if name not in self._where:
            raise ModelError(f"{self._folder} has no tensor {name!r}; {ANEW}, or {OTHER_CONFIG}")

    def _slice(self, name: str) -> Any:
        return self._open(self._where[name]).get_slice(self._stored_names[name])

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            try:
                self._files[path] = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ModelError(
                    f"{path} is not a readable safetensors file: {first_line(error)}; {ANEW}"
                ) from error
        return self._files[path]


def _renamed(name: str, renamed: Sequence[tuple[str, str]]) -> str:
    for part, own in renamed:
        name = name.replace(part, own)
    return name


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, those of the index if it has one.

    Raises:
        ModelError: there is none, or one the index names is missing.
    """
    if (folder / INDEX).exists():
        names = read_json(folder / INDEX).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
            raise ModelError(f"{folder / INDEX} has no weight_map of files; {ANEW}")
        paths = [folder / name for name in sorted(set(names.values()))]
    else:
        paths = sorted(folder.glob("*.safetensors"))
    for path in paths:
        if not path.exists():
            raise ModelError(f"{folder} has no {path.name}, which {INDEX} names; {ANEW}")
    if not paths:
        pickles = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
        if pickles:
            raise ModelError(
                f"{pickles[0]}: pickled weights are not loaded; convert them to safetensors"
            )
        raise ModelError(f"{folder} has no weights (model.safetensors)")
    return paths


class DummyWeights:
    """Makes random weights, the same at each start on one kind of device."""

    def __init__(self, std: float, device: torch.device) -> None:
        self._std = std
        self.asked: Asked = {}
        self._generator = torch.Generator(device).manual_seed(DUMMY_SEED)

    def fill(self, target: torch.Tensor, name: str) -> None:
        self.asked[name] = TensorInfo(tuple(target.shape), target.dtype)
        if name.endswith("norm.weight"):
            target.fill_(1.0)
        elif name.endswith(".bias"):
            target.zero_()
        else:
            target.normal_(0.0, self._std, generator=self._generator)

    def fill_part(self, target: torch.Tensor, name: str, part: OwnedPart) -> None:
        whole = target.new_empty(part.whole_shape(target.shape))  # the numbers are one rank's
        self.fill(whole, name)
        target.copy_(part.of_whole(whole))

    def shape(self, name: str) -> tuple[int, ...] | None:
        return None

    @property
    def checkpoint(self) -> StoredTensors | None:
        return None

    def finish(self) -> None:
        pass
