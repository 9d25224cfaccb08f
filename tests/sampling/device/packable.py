"""A kernel for a GPU that need not be there, in a module that does not import torch."""

from __future__ import annotations

import triton.language as tl


def _add_kernel(x_ptr: tl.tensor, count: tl.tensor) -> None:
    tl.store(x_ptr + count, tl.load(x_ptr) + 1.0)
