"""The contracts of where weights come from: stored tensors, and what layers read them through."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from engine.contracts.named_weights import TensorInfo
from engine.models.weights.shares import OwnedPart

TORCH_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The types of stored tensors, by safetensors' names."""

Asked = dict[str, TensorInfo]
"""Tensors that were asked for, in order, as they are stored."""


class StoredTensors(Protocol):
    """Tensors as a checkpoint has them."""

    def fill(self, target: torch.Tensor, name: str) -> None: ...

    def fill_part(self, target: torch.Tensor, name: str, part: OwnedPart) -> None: ...

    def stored(self, name: str) -> torch.Tensor:
        """Read a tensor as it is stored."""
        ...

    def stored_type(self, name: str) -> str:
        """The type of a tensor that there is, as safetensors names it: "BF16", "F8_E4M3"."""
        ...

    def stored_name(self, name: str) -> str:
        """The checkpoint's own name of a tensor."""
        ...

    def stored_module(self, module: str) -> str:
        """The checkpoint's own name of a module that has a weight."""
        ...

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor; None if there is none of the name."""
        ...

    def place(self, name: str) -> Path | str:
        """Where a tensor is or should be, for errors."""
        ...


class WeightSource(Protocol):
    """The source of a model's tensors.

    Attributes:
        checkpoint: the stored tensors; None where tensors are made.
        asked: the tensors that were asked for so far.
    """

    @property
    def checkpoint(self) -> StoredTensors | None: ...

    @property
    def asked(self) -> Asked: ...

    def fill(self, target: torch.Tensor, name: str) -> None:
        """Write tensor `name` into `target`, which may be part of a fused weight."""
        ...

    def fill_part(self, target: torch.Tensor, name: str, part: OwnedPart) -> None:
        """Write a part of tensor `name` into `target`; no more than that is read of a file."""
        ...

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor that a checkpoint may hold; None if it does not."""
        ...

    def finish(self) -> None:
        """End the reading: all tensors were filled."""
        ...


def fill(
    source: WeightSource | StoredTensors, target: torch.Tensor, name: str, part: OwnedPart | None
) -> None:
    """Write tensor `name`, or a rank's part of it, into `target`."""
    if part is None:
        source.fill(target, name)
    else:
        source.fill_part(target, name, part)
