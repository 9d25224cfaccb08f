"""Compiling Triton's kernels all at once, before a server is ready, and noticing when one compiles.

Compiling a kernel takes about half a second of one core, most of it outside the interpreter.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from sampling.triton_support import HAS_TRITON, INTERPRETED, triton


@contextlib.contextmanager
def compiling_together() -> Iterator[None]:
    """Compile the kernels launched within on threads, and launch none of them.

    Memory that kernels would have written is left as it was, zeros if it is new: only code that
    looks at no value on the host may run within. On leaving, every kernel is compiled and loaded.
    """
    if not HAS_TRITON or INTERPRETED:
        yield
        return
    kernels: list[Any] = []

    def collect(kernel: Any, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            kernels.append(kernel.run(*args, grid=grid, warmup=True, **options))

        return launch

    threads = ThreadPoolExecutor(min(16, os.cpu_count() or 1))
    with threads, triton.AsyncCompileMode(threads):
        with _launching(collect), _zeros_for_empty():
            yield
        for kernel in kernels:
            _load(kernel)


@contextlib.contextmanager
def _launching(collect: Callable[[Any, Any], Callable[..., None]]) -> Iterator[None]:
    """Make `kernel[grid]` return `collect(kernel, grid)` within."""
    kind = triton.runtime.JITFunction
    kind.__getitem__ = collect
    try:
        yield
    finally:
        del kind.__getitem__  # the inherited one


@contextlib.contextmanager
def _zeros_for_empty() -> Iterator[None]:
    """Fill new memory with zeros, on all threads: leftovers could be used as token ids."""
    zeros = {
        (torch, "empty"): torch.zeros,
        (torch, "empty_like"): torch.zeros_like,
        (torch.Tensor, "new_empty"): torch.Tensor.new_zeros,
    }
    with contextlib.ExitStack() as stack:
        for (owner, name), function in zeros.items():
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, function)
        yield


def _load(kernel: Any) -> None:
    """Build a kernel's launcher, which takes a C compiler, and load the kernel on the GPU.

    One at a time: launchers are C modules of one name, and a thread may find another's.
    """
    compiled = kernel.result() if hasattr(kernel, "result") else kernel
    assert compiled.run is not None


def on_compilation(call: Callable[[str], None] | None) -> None:
    """Call `call` with the name of each kernel that is compiled, or loaded from Triton's cache.

    There is one listener in a process; None removes it.
    """
    if not HAS_TRITON:
        return

    def listen(**compiled: Any) -> None:
        assert call is not None
        call(compiled["fn"].name)

    triton.knobs.runtime.jit_post_compile_hook = None if call is None else listen
