"""FlashInfer's prefill modules: loaded on threads, and built first where they are not built yet.

A build takes over a minute of a compiler on many cores. It goes on beside whatever the engine does,
with less right to the cores, and is left to end by itself if the engine does not wait for it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, NamedTuple

import torch

from engine.contracts.attention import AttentionSpec

BUILD_NICE = 10
"""How far the compilers step back for the engine's own threads."""
LOAD_S = 5.0
"""Seconds in which a built module is loaded. One that takes longer is built again: a cache that was
copied into another folder names files that are not there."""


class Module(NamedTuple):
    """What a module is compiled for.

    Attributes:
        backend: "fa3" on Hopper, else "fa2".
        dtype: of queries, keys, values and outputs.
    """

    backend: str
    dtype: torch.dtype
    head_dim: int
    has_window: bool
    has_softcap: bool

    @classmethod
    def of(cls, spec: AttentionSpec, dtype: torch.dtype, device: torch.device) -> Module:
        """The module of a layer's attention on a device."""
        return cls(
            backend_of(device),
            dtype,
            spec.head_dim,
            spec.sliding_window is not None,
            spec.softcap is not None,
        )

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments by which FlashInfer makes and gets it."""
        no_positions, no_fp16_sums = 0, False
        dtypes = (self.dtype, self.dtype, self.dtype, torch.int32)
        sizes = (self.head_dim, self.head_dim)
        features = (no_positions, self.has_window, self.has_softcap, no_fp16_sums)
        return (self.backend, *dtypes, *sizes, *features)


def backend_of(device: torch.device) -> str:
    """The name of the FlashInfer backend for a device."""
    return "fa3" if torch.cuda.get_device_capability(device)[0] == 9 else "fa2"


class Loading(NamedTuple):
    """A module on its way.

    Attributes:
        future: done when the module is loaded, or has the error because of which it cannot be.
        was_built: whether it was built before, so that it is there in a second.
    """

    future: Future[None]
    was_built: bool


@functools.cache
def loading(module: Module) -> Loading:
    """Begin to load a module, once a process."""
    future: Future[None] = Future()
    try:
        # Imported here: two threads that import one another's halves can break both.
        prefill = _import_prefill()
        from flashinfer.jit.attention.modules import gen_batch_prefill_module

        spec = gen_batch_prefill_module(*module.arguments)
    except Exception as error:  # no FlashInfer for this GPU, a full disk
        future.set_exception(error)
        return Loading(future, was_built=False)
    was_built: bool = spec.is_compiled
    _start(_load, spec, partial(prefill.get_batch_prefill_module, *module.arguments), future)
    return Loading(future, was_built)


def _import_prefill() -> Any:
    """FlashInfer's module of prefill, without all else that its package imports: for seconds.

    A module that needs more than it names gets the whole package.
    """
    package = "flashinfer"
    spec = None if package in sys.modules else importlib.util.find_spec(package)
    if spec is not None:
        sys.modules[package] = importlib.util.module_from_spec(spec)
        try:
            return importlib.import_module(f"{package}.prefill")
        except (ImportError, AttributeError):
            for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
                del sys.modules[name]
    return importlib.import_module(f"{package}.prefill")


def wait_for_modules(modules: Iterable[Module], *, builds: bool = True) -> None:
    """Wait until modules are loaded or have failed to load.

    Args:
        builds: wait for those too that are not built yet, or are built again.
    """
    begun = [loading(module) for module in modules]
    if builds:
        wait([each.future for each in begun])
    else:
        wait([each.future for each in begun if each.was_built], timeout=LOAD_S)


def _start(target: Any, *args: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, daemon=True)
    thread.start()
    return thread


def _load(spec: Any, load: Callable[[], Any], future: Future[None]) -> None:
    try:
        if not spec.is_compiled:
            _start(_build, spec).join()  # a thread can step back, but not forward again
        load()
    except Exception as error:  # no compiler
        future.set_exception(error)
    else:
        future.set_result(None)


def _build(spec: Any) -> None:
    with contextlib.suppress(AttributeError, OSError):  # threads have priorities on Linux alone
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BUILD_NICE)
    with contextlib.suppress(Exception):  # the load after it meets the error again and reports it
        spec.build(need_lock=True)
