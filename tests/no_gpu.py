"""Kernels compiled for a Hopper GPU on a machine that has none; Triton brings its own assembler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from sampling.triton_support import HAS_TRITON, INTERPRETED, triton

needs_compiler = pytest.mark.skipif(
    not HAS_TRITON or INTERPRETED or torch.cuda.is_available(),
    reason="needs Triton's compiler, and no GPU",
)


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


@contextmanager
def compiled_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Compile kernels in place of launching them; collects their names."""
    names: set[str] = set()
    run = triton.runtime.JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        assert kernel.asm["cubin"]
        names.add(self.__name__)

    monkeypatch.setattr(triton.runtime.JITFunction, "run", compile_only)
    triton.runtime.driver.set_active(NoGPU())
    yield names
    triton.runtime.driver.set_active(None)
