"""The kernels of listed ids against the torch path, in Triton's interpreter and on a GPU.

Nothing here is random in outcome: ids are equal, values agree to 1e-5.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sampling.batch import ListedLogprobs
from sampling.kernels.listed import LANES
from sampling.paths.listed_logprobs import listed_kernels, listed_logprobs
from tests.sampling.kernel_cases import DEVICES, pytestmark  # noqa: F401

INF = float("inf")


def make_logits(n: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)) * 3


def different_ids(n: int, width: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.stack([torch.randperm(width, generator=generator)[:count] for _ in range(n)]).int()


def both(x: Tensor, ids: Tensor, device: str) -> tuple[ListedLogprobs, ListedLogprobs]:
    """What kernels and torch find; values at padding are made alike."""
    found = listed_kernels(x.to(device, copy=True), ids.to(device))
    mine = ListedLogprobs(*(each.cpu() for each in found))
    theirs = listed_logprobs(x.clone(), ids)
    for each in (mine, theirs):
        each.values[ids < 0] = 0.0
    return mine, theirs


def assert_same(mine: ListedLogprobs, theirs: ListedLogprobs) -> None:
    for name, got, want in zip(mine._fields, mine, theirs, strict=True):
        assert got.dtype == want.dtype, name
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, equal_nan=True, msg=name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("width", "count"), [(1, 1), (7, 3), (111, 111), (2500, 9), (5000, 300)])
def test_rows_of_many_sizes(width: int, count: int, device: str) -> None:
    assert LANES < 300, "ids of a row are more than one turn"
    assert_same(*both(make_logits(3, width), different_ids(3, width, count), device))


@pytest.mark.parametrize("device", DEVICES)
def test_padding_ties_masks_and_strides(device: str) -> None:
    padded = torch.full((5, 3000), 99.0)
    padded[:, :2500] = (make_logits(5, 2500) / 3).round()
    x = padded[:, :2500]
    x[0] = 0.0
    x[1, ::2] = -0.0
    x[1, 1::2] = 0.0
    x[2, 3:2000] = -INF
    x[3] = -INF
    ids = different_ids(5, 2500, 6)
    ids[1:, 4:] = -1
    ids[4, 1:] = -1
    mine, theirs = both(x, ids, device)
    assert_same(mine, theirs)
    assert mine.best_ids[0] == theirs.best_ids[0]
    assert mine.others[3].isnan()


@pytest.mark.parametrize("device", DEVICES)
def test_an_id_that_is_there_twice_has_one_value(device: str) -> None:
    ids = torch.tensor([[5, 9, 5] + [7] * (LANES + 1)], dtype=torch.int32)
    x = make_logits(1, 300)
    mine, _ = both(x, ids, device)
    want = x.double().log_softmax(1)[0, ids[0].long()].float()
    torch.testing.assert_close(mine.values[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", [float("nan"), INF])
def test_a_bad_row_is_bad_alone(bad: float, device: str) -> None:
    x, ids = make_logits(3, 2500), different_ids(3, 2500, 2)
    clean, _ = both(x, ids, device)
    x[1, 17:40] = bad
    mine, _ = both(x, ids, device)
    assert mine.values[1].isnan().all()
    assert mine.others[1].isnan()
    assert mine.best[1].isnan()
    assert 0 <= mine.best_ids[1] < 2500
    for got, want in zip(mine, clean, strict=True):
        assert torch.equal(got[::2], want[::2])


@pytest.mark.parametrize("device", DEVICES)
def test_next_to_nothing_left_is_still_exact(device: str) -> None:
    x = torch.full((2, 2048), -40.0)
    x[0, 7] = 30.0
    x[1, :] = -INF
    x[1, 7] = 0.0
    mine, theirs = both(x, torch.full((2, 1), 7, dtype=torch.int32), device)
    assert_same(mine, theirs)
    assert mine.others[1] == mine.best[1] == -INF
