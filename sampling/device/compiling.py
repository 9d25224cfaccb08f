"""Compiling Triton's kernels all at once, before a server is ready, and noticing when one compiles.

Compiling a kernel takes about a second of one core, seven eighths of it outside the interpreter.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from typing import Any

import torch

from sampling.device import compile_workers
from sampling.device.compile_workers import Job
from sampling.device.triton_support import HAS_TRITON, INTERPRETED, triton


class _HeldThreads(ThreadPoolExecutor):
    """Threads that begin with what they are given once they are let go.

    Python's part of a compile holds the interpreter: whoever collects kernels would wait for it at
    every launch.
    """

    def __init__(self) -> None:
        super().__init__(min(16, os.cpu_count() or 1))
        self._gate = threading.Event()

    def let_go(self) -> None:
        self._gate.set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        return super().submit(self._run, fn, *args, **options)

    def _run(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self._gate.wait()
        return fn(*args, **options)


_PARSING = threading.Lock()


def _parse_in_turn() -> None:
    """Let one thread at a time parse kernels' sources.

    Older Pythons, 3.11.7 among them, count the parser's depth for all threads together, and raise a
    SystemError where two of them meet in it (CPython's issue 106905).
    """
    kind = triton.runtime.jit.JITCallable
    parse = kind.parse
    if hasattr(parse, "__wrapped__"):
        return

    @functools.wraps(parse)
    def in_turn(function: Any) -> Any:
        with _PARSING:
            return parse(function)

    kind.parse = in_turn


class Compilation:
    """Kernels that are being compiled on threads. `compiling` makes one."""

    def __init__(self, kernels: list[Any], threads: Executor) -> None:
        self._kernels = kernels
        self._threads = threads

    def finish(self) -> None:
        """Wait until every kernel is compiled, and load them all."""
        with self._threads:
            kernels = _finished(self._kernels)
            if kernels:
                _make_launchers(kernels, self._threads)
        for kernel in kernels:
            _load(kernel)


@contextlib.contextmanager
def compiling() -> Iterator[Compilation]:
    """Begin to compile the kernels launched within on threads, and launch none of them.

    Memory that kernels would have written is left as it was, zeros if it is new: only code that
    looks at no value on the host may run within. After leaving, anything may run while kernels are
    compiled; those are there when the compilation that was given is finished.
    """
    kernels: list[Any] = []
    threads = _HeldThreads()
    compilation = Compilation(kernels, threads)
    if not HAS_TRITON or INTERPRETED:
        yield compilation
        return
    _parse_in_turn()

    def collect(kernel: Any, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            kernels.append(kernel.run(*args, grid=grid, warmup=True, **options))
            if kernel.compile is not _compile:
                kernel.compile = _compile  # called by the threads

        return launch

    mode = triton.AsyncCompileMode(threads)
    with mode:
        try:
            with _launching(collect), _zeros_for_empty():
                yield compilation
        finally:
            mode.raw_futures = []  # whose end it would wait for
            threads.let_go()


@functools.cache
def begin_reading_triton() -> None:
    """Begin, once, to hash Triton's own files, 500 MB, which names all that is in its cache."""
    if HAS_TRITON:
        threading.Thread(target=triton.runtime.cache.triton_key, daemon=True).start()


def _compile(source: Any, target: Any, options: dict[str, Any], **env_vars: Any) -> Any:
    """Compile a kernel as Triton does: by a worker, where there are any and no cache has it."""
    workers = compile_workers.begun_workers()
    if workers is not None and env_vars and not _is_cached(source, target, options, **env_vars):
        function = source.fn.fn
        place = (function.__module__, function.__qualname__, source.fn.cache_key)
        what = (source.signature, source.constants, source.attrs, options)
        workers.compile(Job(*place, *what, (target.backend, target.arch, target.warp_size)))
    return triton.compiler.compile(source, target=target, options=options, **env_vars)


def _is_cached(
    source: Any, target: Any, options: dict[str, Any], _env_vars: dict[str, str]
) -> bool:
    """Whether Triton's cache on disk has a kernel."""
    cache, backend = triton.runtime.cache, triton.compiler.make_backend(target)
    key = cache.get_cache_key(source, backend, backend.parse_options(dict(options)), _env_vars)
    manager = cache.get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
    return bool(manager.get_group(f"{source.name[:150]}.json"))


@contextlib.contextmanager
def compiling_together() -> Iterator[None]:
    """Compile what is launched within as `compiling` does; on leaving, all of it is there."""
    with compiling() as compilation:
        yield
    compilation.finish()


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


def _finished(kernels: list[Any]) -> list[Any]:
    """The compiled kernels, each once, those first that were done first."""
    pending = {each.future: each for each in kernels if hasattr(each, "result")}
    done = [each for each in kernels if not hasattr(each, "result")]
    done += [pending[future].result() for future in as_completed(pending)]
    return list({id(kernel): kernel for kernel in done}.values())


def _make_launchers(kernels: list[Any], threads: Executor) -> None:
    """Make kernels' launchers on threads and leave them in Triton's cache.

    Older versions of Triton compile a C module for each signature, with a C compiler that takes as
    long as a kernel. The modules are of one name, and a thread that loads one may find another's.
    So none is loaded here, and what goes wrong is left to `_load` to meet.
    """
    build = triton.runtime.build
    if not hasattr(triton.backends.nvidia.driver, "make_launcher"):
        return  # one launcher serves every signature
    signatures = {repr(kernel.src.signature): kernel for kernel in kernels}
    make = triton.runtime.driver.active.launcher_cls
    load_module = build._load_module_from_path
    build._load_module_from_path = lambda name, path: types.SimpleNamespace(launch=None)
    try:
        made = [threads.submit(make, each.src, each.metadata) for each in signatures.values()]
        for future in made:
            future.exception()
    finally:
        build._load_module_from_path = load_module


def _load(kernel: Any) -> None:
    """Load a kernel and its launcher on the GPU, one at a time: see `_make_launchers`."""
    assert kernel.run is not None


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
