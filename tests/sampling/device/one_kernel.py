"""A small kernel that tests compile."""

from __future__ import annotations

from sampling.device.triton_support import jit, tl


@jit
def one_kernel(out_ptr, count: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(out_ptr + tl.arange(0, count), 1)
