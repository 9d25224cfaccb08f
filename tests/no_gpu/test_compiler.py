"""Launches that a GPU would refuse are reported, by the first line that says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sampling.device.triton_support import jit, tl
from tests.no_gpu.compiler import (
    MAX_SHARED,
    Compiler,
    compiled_only,
    compiling_only,
    needs_compiler,
)
from tests.no_gpu.cuda import pretended_gpu

pytestmark = needs_compiler


@jit
def _copy_kernel(x, out, count: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, count)
    tl.store(out + at, tl.sort(tl.load(x + at)))


@jit
def _refused_kernel(x, count):  # type: ignore[no-untyped-def]
    at = tl.arange(0, count)  # no constant
    tl.store(x + at, 0.0)


@jit
def _wide_kernel(x, y, out, size: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.arange(0, size)[:, None] * size + tl.arange(0, size)[None]
    tl.store(out + rows, tl.dot(tl.load(x + rows), tl.load(y + rows)))


def launched(kernel: Any, *args: Any, grid: Any = (1,)) -> Compiler:
    """What came of a launch; arguments that are functions are made on the GPU."""
    with compiling_only() as compiler, pretended_gpu():
        kernel[grid](*(each() if callable(each) else each for each in args))
    return compiler


def on_gpu() -> torch.Tensor:
    return torch.zeros(64, device="cuda")


def test_what_is_compiled_is_told() -> None:
    compiler = launched(_copy_kernel, on_gpu, on_gpu, 64)
    assert not compiler.faults
    [kernel] = compiler.compiled.values()
    assert kernel.name == "_copy_kernel"
    assert kernel.launch == "x=float32[64], out=float32[64], count=64"
    assert 8 <= kernel.registers <= 255
    assert kernel.shared > 0


def test_a_kernel_that_does_not_compile() -> None:
    compiler = launched(_refused_kernel, on_gpu, 64)
    [(fault, launch)] = compiler.faults.items()
    assert fault.startswith("_refused_kernel: ")
    assert "constexpr" in fault
    assert launch == "x=float32[64], count=64"
    with pytest.raises(AssertionError, match="constexpr"), compiled_only():
        _refused_kernel[(1,)](torch.zeros(64), 64)


def test_more_shared_memory_than_there_is() -> None:
    def half() -> torch.Tensor:
        return torch.zeros((256, 256), dtype=torch.float16, device="cuda")

    compiler = launched(_wide_kernel, half, half, half, 256)
    [kernel] = compiler.compiled.values()
    assert kernel.shared > MAX_SHARED
    assert list(compiler.faults) == [f"_wide_kernel: {kernel.shared} bytes of shared memory"]


def test_a_tensor_of_the_cpu_and_a_grid_too_large() -> None:
    args = (on_gpu, lambda: torch.zeros(64), 64)
    compiler = launched(_copy_kernel, *args, grid=(1, 70_000))
    assert set(compiler.faults) == {
        "_copy_kernel: a tensor of the CPU",
        "_copy_kernel: a grid of (1, 70000)",
    }
