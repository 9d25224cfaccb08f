"""Sources of weights: safetensors files read lazily, or random weights for a config alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.contracts.named_weights import TensorInfo
from engine.errors import ModelError, first_line
from engine.models.weights.folder import INDEX, read_json
from engine.models.weights.shares import OwnedPart
from engine.models.weights.stored import TORCH_TYPES, Asked, StoredTensors, Unread
from engine.progress import report

ANEW = "download the checkpoint anew"
OTHER_CONFIG = "give the config.json that the checkpoint was written with"
"""What to do about a file, and about a tensor, that is not as it must be."""

COMPARED_ROWS = 4096
"""Of a matrix at a time, so that a vocabulary's takes little memory."""
DUMMY_SEED = 0
READS_ALL = Unread()


class Checkpoint:
    """Reads the tensors of a folder's safetensors files and converts them as they are filled.

    Raises:
        ModelError: a file or tensor is missing, has another shape, or was never asked for.
    """

    def __init__(self, folder: Path, unread: Unread = READS_ALL) -> None:
        self.unread = unread
        self._folder = folder
        self._files: dict[Path, Any] = {}
        self._where: dict[str, Path] = {}
        self.asked: Asked = {}
        self._stored_names: dict[str, str] = {}
        for path in weight_files(folder):
            for stored in self._open(path).keys():  # noqa: SIM118 (not a dictionary)
                name = unread.own_name(stored)
                self._where[name], self._stored_names[name] = path, stored
        stored_names = self._stored_names.items()
        self._unread = {name for name, stored in stored_names if not unread.has(stored)}

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

    def has_equal(self, name: str, other: str, dtype: torch.dtype) -> bool:
        """Whether two matrices are there and equal in a type; they do not count as read."""
        shape = self.shape(name)
        if shape is None or shape != self.shape(other):
            return False
        one, two = self._slice(name), self._slice(other)
        rows = [slice(start, start + COMPARED_ROWS) for start in range(0, shape[0], COMPARED_ROWS)]
        return all(torch.equal(one[own].to(dtype), two[own].to(dtype)) for own in rows)

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

    def __init__(self, std: float, device: torch.device, unread: Unread = READS_ALL) -> None:
        self._std, self.unread = std, unread
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
