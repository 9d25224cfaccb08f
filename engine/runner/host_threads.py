"""How many of torch's threads compute a step on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

FEW_TOKENS = 8
"""Tokens below which one thread computes a step: its operations take a few microseconds each, less
than to wake another thread."""


@contextlib.contextmanager
def threads_for(num_tokens: int) -> Iterator[None]:
    """Let torch compute a step of so many tokens with all its threads, or with one."""
    most = torch.get_num_threads()
    if num_tokens >= FEW_TOKENS or most == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(most)
