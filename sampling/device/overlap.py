# mypy: allow-untyped-defs, allow-incomplete-defs
"""Kernels that start while the one before them ends (programmatic dependent launch, Hopper on).

A kernel launched with `overlap_of(tensor)` may begin once every program of the kernel before it
has begun and called `begin_next`, or has ended. Before it touches what that kernel writes it
calls `wait_for_last`, which returns when that kernel, and with it all before it, has ended and
its writes can be seen. Until then it may read only what no kernel in flight writes: weights.

A program that begins takes its place on a processor, where it waits. Kernels whose programs fill
the processors therefore let the next begin late, when their loops have ended, unless there is but
a lone row: programs that found room early are two on one processor and none on another (4 rows
of an 8B model in fp8: 3.45 ms a step with all early, 3.34 with none, 3.12 so, on an H200).
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from sampling.device.triton_support import INTERPRETED, constexpr, jit, tl

EARLY, LATE = 1, 2
"""When a kernel lets the next begin, the values of `overlap`; 0 is never."""

_EARLY, _LATE = constexpr(EARLY), constexpr(LATE)


@jit
def begin_next(overlap: tl.constexpr):
    """Let the next kernel begin, called before all else."""
    if overlap == _EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@jit
def begin_next_late(overlap: tl.constexpr):
    """Let the next kernel begin, called where a program's loop has ended."""
    if overlap == _LATE:
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


def overlap_of(tensor: torch.Tensor, *, late: bool = False) -> dict[str, Any]:
    """Launch options of a kernel that has an `overlap` parameter and takes `tensor`.

    Args:
        late: for a kernel that calls `begin_next_late` too, whether that is where the next begins.
    """
    if _can_overlap(tensor.device):
        return {"overlap": LATE if late else EARLY, "launch_pdl": True}
    return {"overlap": 0}
