"""The import of Triton, which may be missing, and whether its kernels run on a device.

Kernel modules import `tl`, `jit` and `constexpr` from this module. Without Triton they still
import, and only a launch fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, overload

import torch

# Kernels whose last digit matters set fusion at their launch. The default, which changes with
# Triton's version, is fixed here for the others to what they were measured with.
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
    "padded_lanes",
    "tl",
    "triton",
]

HAS_TRITON = triton is not None
INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"


@overload
def jit(function: Callable[..., Any]) -> Any: ...


@overload
def jit(
    *, do_not_specialize: list[str] = ..., do_not_specialize_on_alignment: list[str] = ...
) -> Callable[[Callable[..., Any]], Any]: ...


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorate a kernel with `triton.jit`; return the function itself where Triton is missing."""
    if not HAS_TRITON:
        return function or (lambda decorated: decorated)
    return triton.jit(function, **options) if function else triton.jit(**options)


def constexpr(value: object) -> Any:
    """Wrap a global that kernels read as a compile-time constant."""
    return tl.constexpr(value) if HAS_TRITON else value


def padded_lanes(count: int) -> int:
    """The lanes of a kernel that holds `count` numbers: a power of two, at least 2."""
    lanes: int = max(2, triton.next_power_of_2(count))
    return lanes


def kernels_run_on(device: torch.device) -> bool:
    """Whether Triton kernels can be launched on tensors of `device`."""
    return HAS_TRITON and (device.type == "cuda" or INTERPRETED)
