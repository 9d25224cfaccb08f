"""Triton's interpreter without what it does over and over: most of its time.

For every call of a device function it searches `triton.language` for what it has replaced there
already; for every value it makes a table of dtypes; and it sorts and takes exclusive-ors one
element at a time, in Python. None of that is what kernels compute. Here it searches once a launch,
looks dtypes up in one table, and leaves sorts to numpy.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import numpy as np
from triton.runtime import interpreter

from sampling.triton_support import tl

_searched: set[int] = set()
"""The modules of `triton.language` that the launch under way has searched."""


def quicken() -> None:
    """Patch the interpreter, for the rest of the process."""
    interpreter._get_np_dtype = _look_up(interpreter._get_np_dtype)
    interpreter._patch_lang = _search_once(interpreter._patch_lang)
    interpreter.GridExecutor.__call__ = _search_anew(interpreter.GridExecutor.__call__)
    tl.sort = _sort


def _look_up(make: Any) -> Any:
    known: dict[str, np.dtype[Any]] = {}

    def dtype_of(tl_dtype: Any) -> np.dtype[Any]:
        element = tl_dtype.scalar
        if (found := known.get(element.name)) is None:
            found = known[element.name] = make(element)
        return found

    return dtype_of


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
