"""Tensors of another process of this machine, by handles that it pickled.

A pickle can run anything, so no more is unpickled than what torch makes of a tensor.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from engine.contracts.named_weights import TensorInfo
from engine.contracts.weights import IpcSource, WeightUpdateError
from engine.weights.staging import copies
from sampling.device.ranks import RankExchange

ALLOWED = {
    ("torch.multiprocessing.reductions", "rebuild_cuda_tensor"),
    ("torch.multiprocessing.reductions", "rebuild_tensor"),
    ("torch.multiprocessing.reductions", "rebuild_storage_filename"),
    ("torch.multiprocessing.reductions", "rebuild_typed_storage"),
    ("torch.storage", "UntypedStorage"),
    ("torch.storage", "TypedStorage"),
    ("torch", "Tensor"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.nn.parameter", "Parameter"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("collections", "OrderedDict"),
    ("builtins", "slice"),
}
"""Modules and names of what pickles of tensors call."""
DEVICE_ARG = 6
"""The place of a device's index among the arguments of `rebuild_cuda_tensor`."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if (module, name) in ALLOWED or is_dtype:
            return super().find_class(module, name)
        if name in ("FlattenedTensorMetadata", "LocalSerializedTensor"):
            return _Fields
        raise WeightUpdateError(
            f"handles hold {module}.{name}, which is no part of a tensor", "bad_source"
        )


class _Fields:
    """The fields of an object of another server."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        self.args = args
        self.__dict__ |= fields


def unpickled(raw: bytes) -> Any:
    """What a pickle of tensors holds; raises `WeightUpdateError` where it holds anything else."""
    return _Unpickler(io.BytesIO(raw)).load()


class SharedTensor(NamedTuple):
    """A tensor in another process's memory; `raw` is its bytes uint8 [num_bytes], there."""

    name: str
    info: TensorInfo
    raw: torch.Tensor

    def of(self, raw: torch.Tensor) -> torch.Tensor:
        """The tensor that a copy of the bytes is."""
        return raw.view(self.info.dtype).view(self.info.shape)


def named_tensors(raw: bytes) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a pickle by name: of a mapping, of pairs, or of SGLang's flattened bucket.

    Raises:
        WeightUpdateError: it holds anything else.
    """
    content = unpickled(raw)
    if isinstance(content, Mapping) and "flattened_tensor" in content:
        for shared in _of_bucket(content):
            yield shared.name, shared.of(shared.raw.clone())
        return
    for name, tensor in content.items() if isinstance(content, Mapping) else content:
        yield name, _opened(tensor, 0)


def shared_tensors(source: IpcSource, exchange: RankExchange) -> list[tuple[str, torch.Tensor]]:
    """Copies of the tensors of a source's handles.

    All are opened before any is copied: the driver maps memory that many of them share only once,
    as long as one is open.

    Raises:
        WeightUpdateError: they are not for this rank, or not what they say.
    """
    if len(source.handles) not in (1, exchange.size):
        raise WeightUpdateError(
            f"there are handles for {len(source.handles)} ranks, the engine has {exchange.size}",
            "bad_source",
        )
    content = unpickled(source.handles[exchange.rank if len(source.handles) > 1 else 0])
    if source.layout == "vllm":
        shared = list(_of_vllm(source, content))
    elif source.layout == "tensors":
        shared = [_whole(name, _opened(tensor, exchange.rank)) for name, tensor in content]
    else:
        shared = list(_of_bucket(content))
    held = copies([each.raw for each in shared])
    return [(each.name, each.of(raw)) for each, raw in zip(shared, held, strict=True)]


def _of_vllm(source: IpcSource, content: Any) -> Iterator[SharedTensor]:
    """Handles by the GPU's id: of each parameter, or of buffers of all their bytes."""
    if source.sizes is None:
        for name, handles in zip(source.names, content, strict=True):
            yield _whole(name, _of_gpu(handles))
        return
    buffer = _of_gpu(content)
    starts = accumulate(source.sizes, initial=0)
    fields = zip(source.names, source.dtypes, source.shapes, pairwise(starts), strict=True)
    for name, dtype, shape, (start, end) in fields:
        own = getattr(torch, dtype.removeprefix("torch."))
        yield _part(name, buffer, start, end, TensorInfo(tuple(shape), own))


def _whole(name: str, tensor: torch.Tensor) -> SharedTensor:
    info = TensorInfo(tuple(tensor.shape), tensor.dtype)
    return SharedTensor(name, info, tensor.detach().contiguous().view(-1).view(torch.uint8))


def _part(name: str, buffer: torch.Tensor, start: int, end: int, info: TensorInfo) -> SharedTensor:
    num_bytes = prod(info.shape) * info.dtype.itemsize
    if end - start != num_bytes or end > buffer.numel():
        raise WeightUpdateError(
            f"bytes {start} to {end} of a buffer of {buffer.numel()} are not a tensor "
            f"{list(info.shape)} of {num_bytes} bytes",
            "bad_source",
        )
    return SharedTensor(name, info, buffer[start:end])


def _of_gpu(handles: Mapping[str, Any]) -> torch.Tensor:
    """The tensor of this rank's GPU; handles are a function and its arguments by GPU."""
    index = torch.cuda.current_device()
    own = str(torch.cuda.get_device_properties(index).uuid)
    if own not in handles:
        known = ", ".join(handles)
        raise WeightUpdateError(f"handles are of GPUs {known}; this rank's is {own}", "bad_source")
    handle = handles[own]
    arguments = list(handle[1] if len(handle) == 2 else handle)  # after the function, or alone
    arguments[DEVICE_ARG] = index
    tensor: torch.Tensor = rebuild_cuda_tensor(*arguments)  # type: ignore[no-untyped-call]
    return tensor


def _opened(value: Any, rank: int) -> torch.Tensor:
    """A tensor, or that of a rank in SGLang's list of pickles by rank."""
    if isinstance(value, torch.Tensor):
        return value
    fields = vars(value)
    values = fields.get("values") or fields["args"][0]
    tensor: torch.Tensor = unpickled(values[rank])
    return tensor


def _of_bucket(content: Mapping[str, Any]) -> Iterator[SharedTensor]:
    """SGLang's flattened bucket: bytes, and of each tensor its name, shape, type and place."""
    buffer = content["flattened_tensor"].view(-1).view(torch.uint8)
    for each in content["metadata"]:
        fields = vars(each)
        info = TensorInfo(tuple(fields["shape"]), fields["dtype"])
        yield _part(fields["name"], buffer, fields["start_idx"], fields["end_idx"], info)
