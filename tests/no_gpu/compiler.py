"""Kernels compiled for a Hopper GPU on a machine that has none; Triton brings its own assembler."""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from sampling.device import compiling
from sampling.device.triton_support import HAS_TRITON, INTERPRETED, triton

needs_compiler = pytest.mark.skipif(
    not HAS_TRITON or INTERPRETED or torch.cuda.is_available(),
    reason="needs Triton's compiler, and no GPU",
)
MAX_SHARED = 227 << 10
"""Bytes of shared memory that a program may have on a Hopper GPU."""
MAX_GRID = (2**31 - 1, 65_535, 65_535)


class NoGPU:
    """A driver that answers the questions Triton has before it compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> Any:
        return triton.backends.compiler.GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


class Compiled(NamedTuple):
    """A kernel as it was compiled for one kind of launch.

    Attributes:
        name: of its function. launch: its arguments, in words.
        registers: of a thread. stack: bytes of a thread, where what its registers do not hold is.
        shared: bytes of a program. warps: of a program.
    """

    name: str
    launch: str
    warps: int
    registers: int
    stack: int
    shared: int


_USAGE: dict[str, tuple[int, int, int]] = {}
"""What `_usage` said of kernels, by their hashes."""


class Compiler:
    """Compiles in place of launching.

    Attributes:
        compiled: kernels by Triton's hash of them.
        alone: names of those that nothing was compiled beside: a start waits for each.
        faults: launches that a GPU would refuse, in words, with the first one's arguments.
    """

    def __init__(self) -> None:
        self.compiled: dict[str, Compiled] = {}
        self.alone: list[str] = []
        self.faults: dict[str, str] = {}
        self._run = triton.runtime.JITFunction.run
        self._functions: set[Any] = set()

    @property
    def names(self) -> set[str]:
        """Names of the kernels that were compiled."""
        return {kernel.name for kernel in self.compiled.values()}

    def launch(self, function: Any, args: Any, grid: Any, options: dict[str, Any]) -> Any:
        """Compile a kernel for a launch; what goes wrong becomes one of the `faults`."""
        if function not in self._functions:  # what was compiled for another test is no news to one
            self._functions.add(function)
            function.device_caches.clear()
        name, launch = function.__name__, _in_words(function, args, options)
        if torch.cuda.is_available() and not all(each.is_cuda for each in _tensors(args)):
            self._refuse(f"{name}: a tensor of the CPU", launch)
        try:
            kernel = self._run(function, *args, grid=grid, warmup=True, **options)
        except Exception as error:
            self._refuse(f"{name}: {_reason(error)}", launch)
            return None
        if kernel.hash not in self.compiled:
            if "__getitem__" not in vars(triton.runtime.JITFunction):  # `compiling`'s
                self.alone.append(name)
            if kernel.hash not in _USAGE:
                _USAGE[kernel.hash] = _usage(kernel)
            self.compiled[kernel.hash] = Compiled(
                name, launch, kernel.metadata.num_warps, *_USAGE[kernel.hash]
            )
        if (shared := self.compiled[kernel.hash].shared) > MAX_SHARED:
            self._refuse(f"{name}: {shared} bytes of shared memory", launch)
        if not callable(grid) and any(n > most for n, most in zip(grid, MAX_GRID, strict=False)):
            self._refuse(f"{name}: a grid of {grid}", launch)
        return kernel

    def _refuse(self, fault: str, launch: str) -> None:
        self.faults.setdefault(fault, launch)


def _tensors(args: Any) -> Iterator[torch.Tensor]:
    """Tensors among arguments, those in tuples too."""
    for each in args:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, tuple):
            yield from _tensors(each)


def _in_words(function: Any, args: Any, options: dict[str, Any]) -> str:
    """The arguments of a launch, tensors by their dtypes and shapes."""
    named = {name: value for name, value in options.items() if name in function.arg_names}
    bound = function.signature.bind_partial(*args, **named).arguments
    return ", ".join(f"{name}={_word_of(value)}" for name, value in bound.items())


def _word_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        shape = "x".join(map(str, value.shape))
        return f"{str(value.dtype).removeprefix('torch.')}[{shape}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_word_of, value))})"
    return str(getattr(value, "__name__", value))


def _reason(error: Exception) -> str:
    """The innermost cause of an error that Triton has met: its place and its words."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^\t")]
    return f"{type(error).__name__}: {' | '.join([*lines[:1], *lines[-2:]])}"


def _usage(kernel: Any) -> tuple[int, int, int]:
    """Registers and bytes of stack of a thread, and bytes of shared memory of a program."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = (str(tool), "-res-usage", file.name)
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found is not None, text
    return int(found[1]), int(found[2]), int(kernel.metadata.shared)


class _NoThreads(contextlib.nullcontext[None]):
    """Triton's mode of compiling on threads, which compiles at once."""

    def __init__(self, _: Any) -> None:
        super().__init__()


@contextlib.contextmanager
def compiling_only() -> Iterator[Compiler]:
    """Compile kernels in place of launching them."""
    compiler = Compiler()

    def launch(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return compiler.launch(self, args, grid, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton.runtime.JITFunction, "run", launch)
        patch.setattr(triton, "AsyncCompileMode", _NoThreads)
        patch.setattr(compiling, "_finished", lambda kernels: [])
        triton.runtime.driver.set_active(NoGPU())
        try:
            yield compiler
        finally:
            triton.runtime.driver.set_active(None)


@contextlib.contextmanager
def compiled_only() -> Iterator[Compiler]:
    """Compile kernels in place of launching them.

    Raises:
        AssertionError: at the end of the block, where a GPU would have refused a launch.
    """
    with compiling_only() as compiler:
        yield compiler
    assert not compiler.faults, "\n".join(f"{k}\n    {v}" for k, v in compiler.faults.items())
