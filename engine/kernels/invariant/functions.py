"""Functions of single numbers whose bits do not depend on the tensor that they are in.

On a CPU torch computes exponentials and the like by vectors of numbers. The few numbers left at the
end of a tensor, or of a thread's part of it, go one by one through another function, whose last bit
may differ. Padded so that no part has such an end, a tensor has one function for all its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

LANES = 256
"""A multiple of the numbers that torch computes at once: four vectors of at most 64."""
GRAIN = 32768
"""The numbers that are a thread's at least (`at::internal::GRAIN_SIZE`)."""
GELU_GRAIN = 0x4000
"""Beyond as many numbers, gelu is divided among all threads (`GeluKernelImpl`)."""


def elementwise(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Compute a function of each number of x → contiguous, of x's shape."""
    if x.is_cuda:
        return function(x)
    count, unit = x.numel(), LANES
    if count > GELU_GRAIN:
        threads = torch.get_num_threads()
        unit *= math.lcm(threads, min(threads, -(-count // GRAIN)))
    flat = x.reshape(-1)
    if count % unit:
        flat = F.pad(flat, (0, -count % unit))
    return function(flat)[:count].view(x.shape)
