"""What tests of the engine on a GPU share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Let a test forbid waiting for the GPU, which is allowed again after it."""
    yield
    torch.cuda.set_sync_debug_mode("default")
