# mypy: allow-untyped-defs, allow-incomplete-defs
"""Kernels that start while the one before them ends (programmatic dependent launch, Hopper on).

A kernel launched with `overlap_of(tensor)` may begin once every program of the kernel before it
has begun and called `begin_next`, or has ended. Before it touches what that kernel writes it
calls `wait_for_last`, which returns when that kernel, and with it all before it, has ended and
its writes can be seen. Until then it may read only what no kernel in flight writes: weights.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from sampling.triton_support import INTERPRETED, jit, tl


@jit
def begin_next(overlap: tl.constexpr):
    """Let the next kernel begin."""
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()


@jit
def wait_for_last(overlap: tl.constexpr):
    """Wait for the kernel before this one."""
    if overlap:
        tl.extra.cuda.gdc_wait()


@jit
def prefetch(pointers):
    """Ask for the lines at `pointers` to be brought to the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [pointers],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@functools.cache
def _can_overlap(device: torch.device) -> bool:
    if INTERPRETED or device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device)[0] >= 9


def overlap_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Launch options of a kernel that has an `overlap` parameter and takes `tensor`."""
    if _can_overlap(tensor.device):
        return {"overlap": True, "launch_pdl": True}
    return {"overlap": False}
