"""`make compile-kernels`: starts servers on a GPU that is not there, and reports their kernels.

python -m tests.no_gpu.run [START...] compiles what each start, and its first steps, launch. It
reports how many kernels were compiled with nothing beside them, and of each the most registers,
bytes of stack and bytes of shared memory of its variants. It ends with 1 where a GPU would have
refused a launch or a request have waited for a compile.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

import engine
import sampling
from sampling.device.compiling import on_compilation
from sampling.device.triton_support import triton
from tests.no_gpu.compiler import Compiled, Compiler, compiling_only
from tests.no_gpu.cuda import pretended_gpu
from tests.no_gpu.flashinfer import pretended_flashinfer
from tests.no_gpu.starts import STARTS, serve, start, write


def compiled_by(name: str) -> Compiler:
    """What a start and its first steps launched; that they fail is one of the faults."""
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        folder = write(name, Path(made))
        compiler = stack.enter_context(compiling_only())
        stack.enter_context(pretended_gpu())
        if STARTS[name].has_flashinfer:
            stack.enter_context(pretended_flashinfer())
        try:
            started = start(name, folder)
            ahead = set(compiler.compiled)
            serve(started)
        except Exception as error:
            compiler.faults[f"{type(error).__name__}: {error}"] = traceback.format_exc()
            return compiler
        finally:
            on_compilation(None)  # the engine's own listener
        for key in compiler.compiled.keys() - ahead:
            late = compiler.compiled[key]
            compiler.faults[f"{late.name}: compiled inside a request"] = late.launch
    return compiler


def main(names: list[str]) -> int:
    """Report starts; returns the exit code."""
    known: dict[str, Compiled] = {}
    num_faults = 0
    print(f"Triton {triton.__version__}")
    for name in names or STARTS:
        began = time.monotonic()
        compiler = compiled_by(name)
        seconds = time.monotonic() - began
        counts = f"{len(compiler.compiled)} kernels, {len(compiler.alone)} of them alone"
        print(f"{name}: {counts}, {seconds:.0f} s", flush=True)
        for fault, launch in compiler.faults.items():
            print(f"  FAULT {fault}\n    {launch}", flush=True)
        num_faults += len(compiler.faults)
        known |= compiler.compiled
    _tell(known.values())
    if not names:
        launched = {kernel.name for kernel in known.values()}
        print("launched by no start:", ", ".join(sorted(_kernels() - launched)) or "none")
    print(f"{num_faults} faults")
    return min(num_faults, 1)


def _kernels() -> set[str]:
    """The names of all kernels, which end alike."""
    names: set[str] = set()
    for package in (engine, sampling):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            members = vars(importlib.import_module(found.name))
            names.update(name for name in members if name.endswith("_kernel"))
    return names


def _tell(compiled: Collection[Compiled]) -> None:
    """Print a line for each kernel, and the launches of those that need the stack."""
    variants: dict[str, list[Compiled]] = defaultdict(list)
    for kernel in compiled:
        variants[kernel.name].append(kernel)
    print(f"{'kernel':28} variants registers stack shared")
    for name, all_of_it in sorted(variants.items()):
        most = [max(numbers) for numbers in zip(*(each[2:] for each in all_of_it), strict=True)]
        print(f"{name:28} {len(all_of_it):8} {most[0]:9} {most[1]:5} {most[2]:6}")
    for kernel in sorted(compiled, key=lambda each: -each.stack):
        if kernel.stack:
            print(f"{kernel.stack} bytes of stack: {kernel.name}({kernel.launch})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
