"""Servers of many kinds start on a GPU that is not there: it would have taken every launch."""

from __future__ import annotations

import pytest

from tests.no_gpu.compiler import needs_compiler
from tests.no_gpu.run import compiled_by
from tests.no_gpu.starts import STARTS

TOGETHER = ("demo", "float32", "wide vocabulary", "flashinfer")
"""Starts that wait for no kernel alone: weights as they are, no drafts, a plain cache."""


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", STARTS)
def test_a_gpu_would_take_every_launch(name: str) -> None:
    compiler = compiled_by(name)
    assert compiler.compiled
    assert not compiler.faults
    if name in TOGETHER:
        assert not compiler.alone
