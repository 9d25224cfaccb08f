"""Triton's interpreter without what it does over and over: most of its time.

For every call of a device function it searches `triton.language` for what it has replaced there
already; for every value it makes the type, its shape and a table of dtypes; after every sum of
integers it looks for an overflow, which it then does not report; it reads floats of 8 and 16 bits
one bit of their mantissas after the other; and it sorts and takes exclusive-ors one element at a
time, in Python. None of that is what kernels compute. Here it searches once a launch, makes a type
once, looks dtypes and short floats up in tables, and leaves sorts to numpy.

One thing it computes otherwise: products of tiles are summed in float64 and rounded once, those of
bfloat16 too, whose bits it would multiply as integers. On some
processors numpy's library adds a row's products in an order that follows from the row's place in
the tile; a GPU's does not, and tests compare bits.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from functools import cache
from typing import Any

import numpy as np
from triton.runtime import interpreter

from sampling.device.triton_support import tl

_searched: set[int] = set()
"""The modules of `triton.language` that the launch under way has searched."""


def quicken() -> None:
    """Patch the interpreter, for the rest of the process."""
    interpreter._get_np_dtype = _look_up(interpreter._get_np_dtype)
    interpreter._convert_float = _by_table(interpreter._convert_float)
    interpreter._patch_lang = _search_once(interpreter._patch_lang)
    interpreter._patch_attr = _replace_directly
    interpreter.GridExecutor.__call__ = _search_anew(interpreter.GridExecutor.__call__)
    interpreter.InterpreterBuilder.create_dot = _sum_in_double(
        interpreter.InterpreterBuilder.create_dot
    )
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    semantic = interpreter.TritonSemantic
    semantic.binary_op_type_checking_impl = _unless_alike(semantic.binary_op_type_checking_impl)
    semantic.broadcast_impl_value = _unless_of_one_shape(semantic.broadcast_impl_value)
    semantic.computation_type_impl = _decide_once(semantic.computation_type_impl)
    block_type = tl.core.block_type
    block_type.__new__ = _make_once
    block_type.__init__ = _describe_once(block_type.__init__)
    block_type.to_ir = lambda block, builder: block
    tl.dtype.__eq__ = _by_name(tl.dtype.__eq__)
    tl.core.tensor.__init__ = _init_tensor
    tl.core._unwrap_if_constexpr = _unwrap(tl.core._unwrap_if_constexpr)
    tl.sort = _sort


def _look_up(make: Any) -> Any:
    known: dict[str, np.dtype[Any]] = {}

    def dtype_of(tl_dtype: Any) -> np.dtype[Any]:
        element = tl_dtype.scalar
        if (found := known.get(element.name)) is None:
            found = known[element.name] = make(element)
        return found

    return dtype_of


def _sum_in_double(dot: Any) -> Any:
    def dot_in_double(builder: Any, a: Any, b: Any, d: Any, *rules: Any) -> Any:
        if d.data.dtype != np.float32:
            return dot(builder, a, b, d, *rules)
        wide = interpreter.TensorHandle(d.data.astype(np.float64), tl.float64)
        summed = dot(builder, _readable(a), _readable(b), wide, *rules).data
        return interpreter.TensorHandle(summed.astype(np.float32), d.dtype.scalar)

    return dot_in_double


def _readable(tile: Any) -> Any:
    """A tile of bfloat16, which numpy does not have and the interpreter keeps as its bits."""
    if tile.dtype.scalar.name != "bf16":
        return tile
    data = interpreter._convert_float(tile.data, tl.bfloat16, tl.float32, None)
    return interpreter.TensorHandle(data.view(np.float32), tl.float32)


_types: dict[tuple[Any, ...], Any] = {}
"""Every type of a block that was made, by the name of its elements and its sizes."""


def _make_once(cls: Any, element_ty: Any, shape: Any) -> Any:
    """`tl.block_type`: the one that was made before, if any."""
    sizes = (size.value if isinstance(size, tl.constexpr) else size for size in shape)
    key = (element_ty.name, *sizes)
    if (found := _types.get(key)) is None:
        found = _types[key] = object.__new__(cls)
    return found


def _describe_once(describe: Any) -> Any:
    def describe_once(block: Any, element_ty: Any, shape: Any) -> None:
        if "of_tensors" not in block.__dict__:
            describe(block, element_ty, shape)
            block.sizes = tuple(block.shape)
            block.of_tensors = _shape_and_numel(block.sizes)

    return describe_once


def _shape_and_numel(sizes: tuple[int, ...]) -> tuple[Any, Any]:
    return tl.tuple([tl.constexpr(size) for size in sizes]), tl.constexpr(math.prod(sizes))


_OF_A_NUMBER = _shape_and_numel(())


def _init_tensor(tensor: Any, handle: Any, type: Any) -> None:  # noqa: A002 (as Triton calls it)
    """`tl.tensor.__init__`."""
    tensor.handle = handle
    tensor.type = type
    tensor.dtype = type.scalar
    tensor.shape, tensor.numel = type.of_tensors if type.is_block() else _OF_A_NUMBER


def _by_name(equal: Any) -> Any:
    def equal_by_name(dtype: Any, other: Any) -> bool:
        if other.__class__ is dtype.__class__ is tl.dtype:
            return bool(dtype.name == other.name)
        return bool(equal(dtype, other))

    return equal_by_name


def _unwrap(unwrap: Any) -> Any:
    plain = {int, float, bool, str, type(None), tl.tensor, tl.dtype, tl.block_type}

    def unwrap_what_is_wrapped(value: Any) -> Any:
        return value if value.__class__ in plain else unwrap(value)

    return unwrap_what_is_wrapped


def _unless_alike(match: Any) -> Any:
    """Operands of one type stay as they are, but pointers, and quotients of halves."""

    def match_unless_alike(semantic: Any, lhs: Any, rhs: Any, *rules: bool, **more: bool) -> Any:
        if (
            isinstance(lhs, tl.tensor)
            and isinstance(rhs, tl.tensor)
            and lhs.type is rhs.type
            and not lhs.dtype.is_ptr()
            and not (more.get("div_or_mod") or rules[3:4] == (True,))
        ):
            return lhs, rhs
        return match(semantic, lhs, rhs, *rules, **more)

    return match_unless_alike


def _unless_of_one_shape(broadcast: Any) -> Any:
    def broadcast_unless_of_one_shape(semantic: Any, lhs: Any, rhs: Any) -> Any:
        if getattr(lhs.type, "sizes", ()) == getattr(rhs.type, "sizes", ()):
            return lhs, rhs
        return broadcast(semantic, lhs, rhs)

    return broadcast_unless_of_one_shape


def _decide_once(decide: Any) -> Any:
    known: dict[tuple[Any, ...], Any] = {}

    def decide_once(semantic: Any, a: Any, a_is: bool, b: Any, b_is: bool, divides: bool) -> Any:
        key = (a.name, a_is, b.name, b_is, divides)
        if (found := known.get(key)) is None:
            found = known[key] = decide(semantic, a, a_is, b, b_is, divides)
        return found

    return decide_once


_FLOATS = ("float8e5", "float8e4nv", "float16", "bfloat16", "float32", "float64")
_FLOATS_BY_NAME = {getattr(tl, name).name: getattr(tl, name) for name in _FLOATS}


def _by_table(convert: Any) -> Any:
    """Convert a float of 8 or 16 bits as Triton did its whole type once."""

    @cache
    def table(source_name: str, target_name: str, rounding: Any) -> Any:
        source, target = _FLOATS_BY_NAME[source_name], _FLOATS_BY_NAME[target_name]
        bits = source.primitive_bitwidth
        return convert(np.arange(1 << bits, dtype=f"uint{bits}"), source, target, rounding)

    def look_up(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source.primitive_bitwidth <= 16:
            bits = data.view(f"uint{source.primitive_bitwidth}")
            return table(source.name, target.name, rounding)[bits]
        if source.name == "fp32" and target.name == "bf16" and rounding is None:
            bits = data.view(np.uint32)
            magnitude = bits & 0x7FFFFFFF
            if not ((magnitude > 0) & (magnitude < 0x00800000)).any():  # no subnormal one
                return (bits >> 16).astype(np.uint16)
        return convert(data, source, target, rounding)

    return look_up


def _replace_directly(package: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """Have a function of the language called with the interpreter's semantics."""
    semantic = interpreter.interpreter_semantic
    function = inspect.unwrap(member)

    def with_semantic(*arguments: Any, **options: Any) -> Any:
        options["_semantic"] = semantic
        return function(*arguments, **options)

    scope.set_attr(package, name, with_semantic)


def _search_once(search: Any) -> Any:
    def search_once(function: Any) -> Any:
        languages = _languages_of(function)
        if languages <= _searched:
            return interpreter._LangPatchScope()  # of nothing
        _searched.update(languages)
        return search(function)

    return search_once


@cache
def _languages_of(function: Any) -> frozenset[int]:
    """The modules that the interpreter would search for a function."""
    modules = filter(inspect.ismodule, function.__globals__.values())
    return frozenset(id(module) for module in modules if module in (tl, tl.core))


def _search_anew(launch: Any) -> Any:
    def launch_anew(executor: Any, *arguments: Any, **options: Any) -> None:
        _searched.clear()
        try:
            launch(executor, *arguments, **options)
        finally:
            _searched.clear()  # what it replaced was put back

    return launch_anew


def _sort(values: Any, descending: bool = False) -> Any:
    """`tl.sort` along the last axis."""
    ordered = np.sort(values.handle.data)
    data = np.ascontiguousarray(ordered[..., ::-1]) if descending else ordered
    return type(values)(type(values.handle)(data, values.handle.dtype), values.type)
