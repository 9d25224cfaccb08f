"""What torch.cuda says of a GPU that is not there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.no_gpu.tensors import GPU, Pretending

CAPABILITY = (9, 0)
NUM_PROCESSORS = 132
MEMORY = 80 << 30


class _Stream:
    device = GPU

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def wait_stream(self, other: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...


class _Generator(torch.Generator):
    def __new__(cls, device: Any = None) -> _Generator:
        return super().__new__(cls)


class _Event:
    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: _Event) -> float:
        return 1.0


class _Graph:
    """A captured graph; a replay computes nothing."""

    def capture_begin(self, **_: Any) -> None: ...
    def capture_end(self) -> None: ...
    def replay(self) -> None: ...


PROPERTIES = SimpleNamespace(multi_processor_count=NUM_PROCESSORS, total_memory=MEMORY)
ANSWERS: dict[str, Any] = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "device_count": lambda: 1,
    "get_device_name": lambda device=None: "no GPU",
    "get_device_capability": lambda device=None: CAPABILITY,
    "get_device_properties": lambda device=None: PROPERTIES,
    "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
    "set_rng_state": lambda state, device=None: None,
    "synchronize": lambda device=None: None,
    "empty_cache": lambda: None,
    "memory_allocated": lambda device=None: 0,
    "memory_reserved": lambda device=None: 0,
    "max_memory_reserved": lambda device=None: 0,
    "reset_peak_memory_stats": lambda device=None: None,
    "mem_get_info": lambda device=None: (MEMORY, MEMORY),
    "graph_pool_handle": lambda: (0, 0),
    "Stream": _Stream,
    "Event": _Event,
    "CUDAGraph": _Graph,
    "stream": lambda stream: contextlib.nullcontext(),
    "set_stream": lambda stream: None,
    "current_stream": lambda device=None: _Stream(),
}


@contextlib.contextmanager
def pretended_gpu() -> Iterator[None]:
    """Pretend that this machine has a Hopper GPU; kernels are not launched within."""
    with pytest.MonkeyPatch.context() as patch, Pretending():
        for name, answer in ANSWERS.items():
            patch.setattr(torch.cuda, name, answer)
        patch.setattr(torch, "Generator", _Generator)
        patch.setattr(torch.backends.cuda, "preferred_blas_library", lambda library: library)
        yield
