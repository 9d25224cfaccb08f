"""The one place that knows whether Triton is installed and whether its kernels run here.

Kernel modules import `tl`, `jit` and `constexpr` from this module. Without Triton they still
import, and only a launch fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, overload

import torch

# Kernels whose last digit matters say so at their launch. For the others the default, which
# changes with Triton's version, is kept what they were measured with.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU installation on a platform without Triton
    triton = tl = None

__all__ = [
    "HAS_TRITON",
    "INTERPRETED",
    "constexpr",
    "jit",
    "kernels_run_on",
    "tl",
    "triton",
]

HAS_TRITON = triton is not None
INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"


@overload
def jit(function: Callable[..., Any]) -> Any: ...


@overload
def jit(*, do_not_specialize: list[str]) -> Callable[[Callable[..., Any]], Any]: ...


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`triton.jit`, with or without options; the function itself where Triton is missing."""
    if not HAS_TRITON:
        return function or (lambda decorated: decorated)
    return triton.jit(function, **options) if function else triton.jit(**options)


def constexpr(value: float) -> Any:
    """A global that kernels read as a compile-time constant."""
    return tl.constexpr(value) if HAS_TRITON else value


def kernels_run_on(device: torch.device) -> bool:
    """Whether Triton kernels can be launched on tensors of `device`."""
    return HAS_TRITON and (device.type == "cuda" or INTERPRETED)
