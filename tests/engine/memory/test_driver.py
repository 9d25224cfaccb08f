"""The driver's calls, over a library that fails where it is told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.memory.driver import Driver


class FakeCuda:
    """A library that notes the names of what is called."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.called = fails, list[str]()

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*_: Any) -> int:
            self.called.append(name)
            return 2 if name == self.fails else 0

        return call


@pytest.mark.parametrize(
    ("fails", "undone"),
    [
        ("cuMemCreate", []),
        ("cuMemMap", ["cuMemRelease"]),
        ("cuMemSetAccess", ["cuMemUnmap", "cuMemRelease"]),
        ("", []),
    ],
)
def test_memory_that_cannot_be_mapped_is_released(fails: str, undone: list[str]) -> None:
    cuda = FakeCuda(fails)
    driver = Driver(0, cuda)
    cuda.called.clear()
    calls = ["cuMemCreate", "cuMemMap", "cuMemSetAccess"]
    if not fails:
        driver.map(1 << 30, 1 << 21)
        assert cuda.called == calls
        return
    with pytest.raises(RuntimeError, match=f"^{fails} failed with CUDA error 2$"):
        driver.map(1 << 30, 1 << 21)
    assert cuda.called == [*calls[: calls.index(fails) + 1], *undone]
