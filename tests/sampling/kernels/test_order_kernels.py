"""Logits as integers: the order of floats, its neighbours and its ties. Nothing here is random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling.device.triton_support import jit, tl
from sampling.filters.cut_state import higher, lower
from sampling.kernels.order import is_kept, order, rank_key, value_of
from sampling.race import Cut
from tests.sampling.kernel_cases import DEVICES, pytestmark  # noqa: F401

LARGEST = 3.4028234663852886e38
VALUES = [
    *(-torch.inf, -LARGEST, -2.0, -1.5, -1.0000001, -1.0, -1e-38, -1e-45, -0.0),
    *(0.0, 1e-45, 1e-38, 0.5, 1.0, 1.0000001, 1.5, 2.0, 16777216.0, LARGEST, torch.inf),
]
"""In ascending order, subnormals among them."""
N = 32


@jit
def _orders_kernel(values, orders, back, up, down, keys, n: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, n)
    own = order(tl.load(values + lane))
    tl.store(orders + lane, own)
    tl.store(back + lane, value_of(own))
    tl.store(up + lane, value_of(higher(own)))
    tl.store(down + lane, value_of(lower(own)))
    tl.store(keys + lane, rank_key(own, n - 1 - lane))


@jit
def _kept_kernel(values, kept, threshold, last_id, n: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, n)
    tl.store(kept + lane, is_kept(tl.load(values + lane), lane, threshold, last_id))


def padded(device: str) -> Tensor:
    return torch.tensor(VALUES + [torch.inf] * (N - len(VALUES)), device=device)


@pytest.fixture(params=DEVICES)
def columns(request: pytest.FixtureRequest) -> dict[str, np.ndarray[Any, Any]]:
    """What the kernel makes of `VALUES`, by name."""
    values = padded(request.param)
    out = {name: torch.empty_like(values) for name in ("back", "up", "down")}
    out["orders"] = torch.empty_like(values, dtype=torch.int32)
    out["keys"] = torch.empty_like(values, dtype=torch.int64)
    _orders_kernel[(1,)](values, n=N, **out)
    return {name: column.cpu().numpy()[: len(VALUES)] for name, column in out.items()}


def test_orders_compare_as_the_values_do(columns: dict[str, np.ndarray[Any, Any]]) -> None:
    values, orders = np.array(VALUES, dtype=np.float32), columns["orders"].astype(np.int64)
    assert (np.diff(orders) >= 0).all()
    assert ((np.diff(orders) > 0) == (values[1:] > values[:-1])).all()
    assert orders[VALUES.index(0.0)] == 0
    assert (columns["back"] == values).all()  # -0.0 comes back as 0.0, its equal


def test_neighbours_are_the_next_floats(columns: dict[str, np.ndarray[Any, Any]]) -> None:
    finite = np.isfinite(VALUES)
    values = np.array(VALUES, dtype=np.float32)[finite]
    assert (columns["up"][finite] == np.nextafter(values, np.float32(np.inf))).all()
    assert (columns["down"][finite] == np.nextafter(values, np.float32(-np.inf))).all()


def test_keys_put_the_lower_id_first_among_equals(columns: dict[str, np.ndarray[Any, Any]]) -> None:
    ids = N - 1 - np.arange(len(VALUES))
    by_key = np.argsort(-columns["keys"])
    assert (by_key == np.lexsort((ids, -np.array(VALUES, dtype=np.float32)))).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("last_id", [0, 8, 9, 2**31 - 1])
def test_a_cut_keeps_the_same_on_the_device_and_in_torch(last_id: int, device: str) -> None:
    values = padded(device)
    for threshold in (-torch.inf, -1.0, 0.0, 1.5):
        kept = torch.empty(N, dtype=torch.bool, device=device)
        _kept_kernel[(1,)](values, kept, threshold, last_id, n=N)
        wanted = Cut(torch.tensor([threshold]), torch.tensor([last_id]))
        assert torch.equal(kept.cpu(), wanted.keeps(values.cpu()[None], torch.arange(N))[0])
