"""Tensors that say they are on a GPU. What they hold is on the CPU, and torch computes there.

Host code meets what a GPU would refuse: tensors of two devices in one operation, numpy's view of
device memory. Products are not computed: their results are zeros.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
_Tensor = torch.Tensor
_OF_ITSELF = {
    getattr(_Tensor, name).__get__
    for name in ("device", "is_cuda", "is_cpu", "is_meta", "shape", "dtype", "requires_grad")
} | {_Tensor.size, _Tensor.stride, _Tensor.dim, _Tensor.storage_offset, _Tensor.requires_grad_}
"""What is asked of the tensor itself, not of what it holds."""
_BETWEEN_DEVICES = {_Tensor.copy_, _Tensor.to, _Tensor.type_as}
_BY_INDEX = {_Tensor.__getitem__, _Tensor.__setitem__}
"""A GPU's tensor takes indices that are on the CPU."""
_MOVING = {_Tensor.to, _Tensor.cpu, _Tensor.cuda}
_TO_CPU = {_Tensor.cpu, _Tensor.tolist, _Tensor.item}
_OF_HOST_MEMORY: set[Any] = {_Tensor.numpy, _Tensor.__array__}
_PRODUCTS = {
    torch.nn.functional.linear,
    torch.matmul,
    torch.mm,
    torch.bmm,
    torch.addmm,
    torch._scaled_mm,
    torch._scaled_mm_v2,
    _Tensor.__matmul__,
    _Tensor.matmul,
    _Tensor.mm,
}
_EMPTY = {torch.empty, torch.empty_like, torch.empty_strided, _Tensor.new_empty}


class PretendTensor(torch.Tensor):
    """A tensor of the GPU; `held` has its shape and strides."""

    held: torch.Tensor

    @staticmethod
    def of(held: torch.Tensor) -> PretendTensor:
        made: PretendTensor = torch.Tensor._make_wrapper_subclass(
            PretendTensor,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=GPU,
        )
        made.held = held
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(f"{func} of a tensor that is not on a GPU")

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def record_stream(self, stream: Any) -> None: ...

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"on {GPU}: {self.held!r}"


class Pretending(TorchFunctionMode):
    """Lets calls that name a GPU make tensors of it."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _call(func, args, kwargs or {})


def _call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call a function of torch on what tensors hold, and pretend of what comes out."""
    with torch._C.DisableTorchFunction():
        if func in _OF_ITSELF or func is torch.device:
            return func(*args, **kwargs)
        if func is _Tensor.pin_memory:
            return args[0].clone()
        given = [each for each in pytree.tree_leaves((args, kwargs)) if _is_tensor(each)]
        ours = [each for each in given if isinstance(each, PretendTensor)]
        if ours:
            _check_devices(func, args, given)
        device = _wanted_device(func, args, kwargs)
        on_gpu = device.type == "cuda" if device is not None else bool(ours)
        kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        if ours and func in _PRODUCTS:
            out = _zeros_of_product(func, args, kwargs)
        else:
            out = func(*pytree.tree_map(_held, args), **pytree.tree_map(_held, kwargs))
        if func in _MOVING and on_gpu != args[0].is_cuda:
            out = out.clone()  # from one device to another nothing is shared
        if not on_gpu:
            return out
        if func in _EMPTY:  # kernels that write it do not run, and leftovers may be used as indices
            out.zero_()
        known = {id(each.held): each for each in ours}
        return pytree.tree_map(lambda each: _pretended(each, known), out)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _held(value: Any) -> Any:
    """A tensor's content; the CPU in place of the GPU."""
    if isinstance(value, PretendTensor):
        return value.held
    if isinstance(value, torch.device) or (isinstance(value, str) and value[:4] == "cuda"):
        return CPU
    return value


def _pretended(value: Any, known: dict[int, PretendTensor]) -> Any:
    """A result as a tensor of the GPU: one that was given, where it was changed in place."""
    if not isinstance(value, torch.Tensor) or isinstance(value, PretendTensor):
        return value
    if id(value) not in known:
        return PretendTensor.of(value)
    assert known[id(value)].shape == value.shape, "a shape that changes in place"
    return known[id(value)]


def _wanted_device(func: Any, args: Any, kwargs: dict[str, Any]) -> torch.device | None:
    """The device that a call asks its result to be on; None for that of its arguments."""
    if func in _TO_CPU:
        return CPU
    if func is _Tensor.cuda:
        return GPU
    if func is _Tensor.to and len(args) > 1:
        if isinstance(args[1], torch.Tensor):
            return args[1].device
        if isinstance(args[1], torch.device | str):
            return torch.device(args[1])
    device = kwargs.get("device")
    return None if device is None else torch.device(device)


def _check_devices(func: Any, args: Any, given: list[torch.Tensor]) -> None:
    if func in _OF_HOST_MEMORY:
        raise TypeError(f"{func.__name__} of a tensor on a GPU")
    if func in _BETWEEN_DEVICES:
        return
    if func in _BY_INDEX:
        given = [each for each in (args[0], *args[2:]) if _is_tensor(each)]
    for each in given:
        if not isinstance(each, PretendTensor) and each.dim() > 0:
            raise RuntimeError(f"tensors of the CPU and of a GPU in {func}")


def _zeros_of_product(func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """Zeros of a product's shape and dtype, in `out` where it is given."""
    left, right = args[1:3] if func is torch.addmm else args[:2]
    right = right.held.mT if func is torch.nn.functional.linear else right.held
    assert left.shape[-1] == right.shape[-2], f"{func} of {left.shape} and {right.shape}"
    out = kwargs.get("out")
    if out is not None:
        held: torch.Tensor = out.held.zero_()
        return held
    many: Any = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
        left.shape[:-2], right.shape[:-2]
    )
    shape = (*many, *left.shape[-2:-1], right.shape[-1])
    dtype = args[9] if func is torch._scaled_mm_v2 else kwargs.get("out_dtype", left.dtype)
    return torch.zeros(shape, dtype=dtype)
