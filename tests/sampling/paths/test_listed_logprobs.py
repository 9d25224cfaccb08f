"""Logprobs of listed ids against float64 computations. Nothing here is random in outcome."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling.paths.listed_logprobs import listed_logprobs

INF = float("inf")


def make_logits(n: int, width: int, *, seed: int = 0) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_values_and_the_mass_of_all_others(device: str) -> None:
    x, ids = make_logits(12, 3000), make_logits(12, 3000, seed=5).topk(9).indices.int()
    ids[3:, 4:] = -1
    table = x.double().log_softmax(1)
    found = listed_logprobs(x.clone().to(device), ids.to(device))
    values, others, best_ids, best, log_sums = (tensor.cpu() for tensor in found)
    np.testing.assert_allclose(log_sums, x.double().logsumexp(1), rtol=1e-6)
    for i, row in enumerate(ids):
        known = row[row >= 0].long()
        np.testing.assert_allclose(values[i, : len(known)], table[i, known], atol=1e-5)
        rest = table[i].clone()
        rest[known] = -INF
        np.testing.assert_allclose(others[i], rest.logsumexp(0), rtol=1e-5, atol=1e-5)
        assert best_ids[i] == rest.argmax()
        np.testing.assert_allclose(best[i], rest.max(), atol=1e-5)


def test_next_to_nothing_left_is_still_exact() -> None:
    x = torch.full((1, 2048), -40.0)
    x[0, 7] = 30.0
    _, others, _, best, _ = listed_logprobs(x, torch.tensor([[7]]))
    assert others.item() == pytest.approx(np.log(2047) - 70.0, abs=1e-5)
    assert best.item() == pytest.approx(-70.0, abs=1e-5)


def test_nothing_left() -> None:
    x = torch.full((1, 9), -INF)
    x[0, 2] = 1.0
    values, others, _, best, _ = listed_logprobs(x, torch.tensor([[2, 3]]))
    assert best.item() == -INF
    assert values.tolist() == [[0.0, -INF]]
    assert others.item() == -INF


@pytest.mark.parametrize("bad", [float("nan"), INF, -INF])
def test_a_bad_row_says_so_alone(bad: float) -> None:
    x, ids = make_logits(3, 2500), torch.tensor([[5, 6]] * 3)
    clean = listed_logprobs(x.clone(), ids)
    x[1] = bad
    values, others, best_ids, best, _ = listed_logprobs(x, ids)
    assert values[1].isnan().all()
    assert others[1].isnan()
    assert best[1].isnan()
    assert ((best_ids >= 0) & (best_ids < 2500)).all()
    assert torch.equal(values[::2], clean[0][::2])
    assert torch.equal(others[::2], clean[1][::2])
