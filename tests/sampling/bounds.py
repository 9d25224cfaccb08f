"""A watch over kernels in Triton's interpreter for accesses outside the tensors they were given.

The interpreter reads and writes raw addresses, so an access that would fault on a GPU mostly
passes unseen here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch


def watch_bounds(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Watch every kernel from now on; return the names of those that stray, filled as they run."""
    from triton.runtime import interpreter

    spans: list[tuple[int, int]] = []
    running, strayed = [""], set()

    def check(pointers: Any, mask: Any) -> None:
        lanes = np.broadcast_to(mask.data, pointers.data.shape)
        addresses = pointers.data[lanes].astype(np.uint64)
        inside = np.zeros(addresses.shape, dtype=np.bool_)
        for first, last in spans:
            inside |= (addresses >= first) & (addresses < last)
        if not inside.all():
            strayed.add(running[0])

    prepare = interpreter.GridExecutor._init_args_hst

    def start(executor: Any, *arguments: Any) -> Any:
        prepared = prepare(executor, *arguments)
        spans[:] = _spans(prepared)
        running[0] = executor.fn.__name__
        return prepared

    monkeypatch.setattr(interpreter.GridExecutor, "_init_args_hst", start)
    for name, mask_at in (("masked_load", 1), ("masked_store", 2), ("atomic_rmw", 3)):
        _wrap(monkeypatch, interpreter.InterpreterBuilder, f"create_{name}", mask_at, check)
    return strayed


def _wrap(
    monkeypatch: pytest.MonkeyPatch, builder: Any, name: str, mask_at: int, check: Any
) -> None:
    original = getattr(builder, name)
    pointers_at = 1 if name == "create_atomic_rmw" else 0

    def checked(self: Any, *arguments: Any) -> Any:
        check(arguments[pointers_at], arguments[mask_at])
        return original(self, *arguments)

    monkeypatch.setattr(builder, name, checked)


def _spans(value: Any) -> list[tuple[int, int]]:
    """The address ranges of the tensors in nested arguments."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        return [(storage.data_ptr(), storage.data_ptr() + storage.nbytes())]
    items: Iterable[Any] = ()
    if isinstance(value, dict):
        items = value.values()
    elif isinstance(value, list | tuple):
        items = value
    return [span for item in items for span in _spans(item)]
