"""The contracts of where weights come from: stored tensors, and what layers read them through."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
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


IGNORED = re.compile(
    r"rotary_emb\.inv_freq$|\.[qkv]_(proj\.)?(scale|zero_point|output_scale)$|\.kv_scale$"
    r"|\.(prob_output_scale|input_scale_ub|weight_shape)$"
)
"""Tensors that are not asked for: angles, which old checkpoints have and the config gives, and what
quantized checkpoints have beside their weights; scales of keys and values belong to a cache in
float8."""

LAYER = re.compile(r"model\.layers\.(\d+)\.")


@dataclass(frozen=True)
class Unread:
    """Tensors of a checkpoint that need not be asked for.

    Attributes:
        names: of some.
        num_layers: layers from this one on need not be, which draft further tokens; None: all must.
        beginnings: of the names of others.
        renamed: parts of names, and what they are called here. All else is by names of here.
    """

    names: frozenset[str] = frozenset()
    num_layers: int | None = None
    beginnings: tuple[str, ...] = ()
    renamed: Sequence[tuple[str, str]] = ()

    def own_name(self, stored: str) -> str:
        """What a tensor of the checkpoint is called here."""
        for part, own in self.renamed:
            stored = stored.replace(part, own)
        return stored

    def has(self, stored: str) -> bool:
        """Whether a tensor of the checkpoint is one of these."""
        name = self.own_name(stored)
        layer = LAYER.match(name)
        is_drafting = self.num_layers is not None and layer and int(layer[1]) >= self.num_layers
        is_named = name in self.names or name.startswith(self.beginnings)
        return is_named or bool(is_drafting) or IGNORED.search(name) is not None


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
        unread: the tensors that checkpoints may have besides.
    """

    @property
    def checkpoint(self) -> StoredTensors | None: ...

    @property
    def asked(self) -> Asked: ...

    @property
    def unread(self) -> Unread: ...

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
