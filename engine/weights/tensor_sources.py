"""Tensors that an update receives, from wherever they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch

from engine.contracts.named_weights import TensorInfo
from engine.contracts.weights import (
    AnySource,
    BucketSource,
    DescribedSource,
    FolderSource,
    GivenSource,
    GroupSource,
    IpcSource,
    TensorBytes,
    WeightUpdateError,
)
from engine.models.weights.stored import TORCH_TYPES
from engine.weights.folder_tensors import FolderTensors
from engine.weights.groups import WeightGroups
from engine.weights.handles import shared_tensors
from sampling.device.ranks import RankExchange


def dtype_name(dtype: torch.dtype) -> str:
    """What trainers call a type: that of torch, without its module."""
    return str(dtype).removeprefix("torch.")


DTYPES = {dtype_name(dtype): dtype for dtype in TORCH_TYPES.values()}
"""The types of tensors, by torch's names."""


class ReceivedTensor(NamedTuple):
    """A tensor that was received.

    Attributes:
        load: gives its numbers, now or later.
        is_kept: they are in a file, or where they can be kept.
        check_unchanged: raises `WeightUpdateError` where they are in a file that was written since.
    """

    name: str
    info: TensorInfo
    load: Callable[[], torch.Tensor]
    is_kept: bool = False
    check_unchanged: Callable[[], None] | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of its numbers."""
        return prod(self.info.shape) * self.info.dtype.itemsize


def received(
    source: AnySource,
    groups: WeightGroups,
    device: torch.device,
    exchange: RankExchange,
    *,
    from_folder: bool,
) -> Iterator[ReceivedTensor]:
    """The tensors of a source.

    Those of a folder are read when they are loaded; others are copied before the next one comes,
    since whoever sent them may overwrite them.

    Args:
        device: of the weights.
        from_folder: what a `DescribedSource` has is in its folder.

    Raises:
        WeightUpdateError: there is no such source, or it gives other than it said.
    """
    match source:
        case FolderSource():
            yield from _of_folder(source.path, device)
        case GivenSource():
            yield from (_held(each.name, _of_bytes(each)) for each in source.tensors)
        case GroupSource() | BucketSource():
            infos = infos_of(source.names, source.dtypes, source.shapes)
            in_one = isinstance(source, BucketSource)
            packed = None if isinstance(source, BucketSource) else source.packed
            tensors = groups.broadcast(source.group, infos, packed=packed, in_one=in_one)
            for name, tensor in zip(source.names, tensors, strict=True):
                yield _held(name, tensor)
        case DescribedSource():
            if from_folder:
                yield from _of_folder(source.path, device)
            else:
                yield from (_held(*each) for each in groups.described(source.group))
        case IpcSource():
            for name, tensor in shared_tensors(source, exchange):
                yield _held(name, tensor, is_kept=True)


def group_of(source: AnySource, groups: WeightGroups) -> str | None:
    """The group over which tensors of a source may be broadcast, if there is one."""
    match source:
        case GroupSource() | BucketSource() | DescribedSource():
            return source.group if groups.has(source.group) else None
        case _:
            return None


def has_weights(folder: Path) -> bool:
    """Whether a folder has files of weights; raises `OSError` where it cannot be looked at."""
    return any(folder.glob("*.safetensors"))


def infos_of(
    names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]]
) -> list[TensorInfo]:
    """The tensors that three lists describe; raises `WeightUpdateError`."""
    if not len(names) == len(dtypes) == len(shapes):
        raise WeightUpdateError(
            f"{len(names)} names, {len(dtypes)} dtypes and {len(shapes)} shapes are not as many",
            "bad_source",
        )
    return [
        TensorInfo(tuple(shape), dtype_of(name, dtype))
        for name, dtype, shape in zip(names, dtypes, shapes, strict=True)
    ]


def dtype_of(name: str, dtype: str) -> torch.dtype:
    """The type of a tensor by torch's name; raises `WeightUpdateError`."""
    own = DTYPES.get(dtype.removeprefix("torch."))
    if own is None:
        known = ", ".join(sorted(DTYPES))
        raise WeightUpdateError(
            f"weight {name!r} has dtype {dtype!r}; known are {known}", "wrong_dtype"
        )
    return own


def _held(name: str, tensor: torch.Tensor, *, is_kept: bool = False) -> ReceivedTensor:
    info = TensorInfo(tuple(tensor.shape), tensor.dtype)
    return ReceivedTensor(name, info, lambda: tensor, is_kept)


def _of_folder(path: str, device: torch.device) -> Iterator[ReceivedTensor]:
    folder = FolderTensors(Path(path), device)
    for index, stored in enumerate(folder.stored):
        load = partial(folder.read, index)
        yield ReceivedTensor(stored.name, stored.info, load, True, folder.check_unchanged)


def _of_bytes(tensor: TensorBytes) -> torch.Tensor:
    dtype = dtype_of(tensor.name, tensor.dtype)
    num_bytes = prod(tensor.shape) * dtype.itemsize
    if len(tensor.data) != num_bytes:
        raise WeightUpdateError(
            f"weight {tensor.name!r} has {len(tensor.data)} bytes; {list(tensor.shape)} of "
            f"{tensor.dtype} are {num_bytes}",
            "bad_source",
        )
    raw = torch.frombuffer(bytearray(tensor.data) or bytearray(1), dtype=torch.uint8)[:num_bytes]
    return raw.view(dtype).view(tensor.shape)
