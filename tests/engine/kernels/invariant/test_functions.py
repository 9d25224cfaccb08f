"""A number's function has the same bits alone, in a row and among many rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.invariant.functions import elementwise

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "expm1": torch.expm1,
}
SHAPES = ((100, 1024), (333, 176), (50, 331), (301, 3))
"""Of ends at every place of a vector, and of parts of threads that end inside a row."""


@pytest.fixture(autouse=True, params=[1, 3, 7])
def threads(request: pytest.FixtureRequest) -> int:
    """The threads of torch; as many as before are put back after every test."""
    torch.set_num_threads(request.param)
    return int(request.param)


def _differing(compute: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> int:
    """The numbers whose bits change between a tensor and its rows one by one."""
    rows = torch.cat([compute(row[None]) for row in x])
    return int((compute(x) != rows).sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_of_rows_alone_and_together(dtype: torch.dtype) -> None:
    for function in FUNCTIONS.values():
        for shape in SHAPES:
            x = (3.0 * torch.randn(shape)).to(dtype)
            assert _differing(partial(elementwise, function), x) == 0
            assert torch.allclose(elementwise(function, x), function(x), rtol=1e-2, atol=1e-6)


def test_strided_inputs() -> None:
    """A gate is half of a product's columns."""
    x = torch.randn(37, 178)
    gate = x[:, :89]
    assert torch.equal(elementwise(F.silu, gate), elementwise(F.silu, gate.contiguous()))


def test_torch_alone_does_not_promise_it(threads: int) -> None:
    """What makes the function necessary: some of 100,000 numbers change somewhere."""
    changed = sum(
        _differing(function, 3.0 * torch.randn(shape))
        for function in FUNCTIONS.values()
        for shape in SHAPES
    )
    assert changed > 0
