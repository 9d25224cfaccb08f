"""Whether tensors hold numbers alone."""

from __future__ import annotations

import pytest
import torch

from engine.models.weights.finite import is_finite

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("size", [1, 7, 100])  # less and more than a vector holds, and its end
def test_a_number_that_is_none_is_found_at_every_place(
    dtype: torch.dtype, bad: float, size: int
) -> None:
    values = torch.randn(size, 3)
    assert is_finite(values.to(dtype))
    for at in range(values.numel()):
        spoiled = values.clone()
        spoiled.view(-1)[at] = bad
        assert not is_finite(spoiled.to(dtype))
        assert not is_finite(spoiled.t().to(dtype))


def test_numbers_alone() -> None:
    assert is_finite(torch.zeros(0, 3))
    assert is_finite(torch.tensor(torch.finfo(torch.float32).max))
    assert not is_finite(torch.tensor(torch.nan))
    assert not is_finite(torch.full((4,), torch.nan, dtype=torch.float8_e4m3fn))
