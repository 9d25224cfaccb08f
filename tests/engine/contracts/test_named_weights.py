"""Units of weights: what they refuse, and what follows a write."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from engine.contracts.named_weights import (
    NamedWeight,
    Portion,
    TensorInfo,
    WeightError,
    WeightUnit,
)
from sampling.device.ranks import RankExchange
from tests.sampling.ranks import on_ranks


def unit_of(held: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> WeightUnit:
    def put(given: Mapping[str, torch.Tensor]) -> None:
        held.copy_(given["w"])

    def get() -> dict[str, Portion]:
        return {"w": Portion(held, tuple(held.shape))}

    return WeightUnit({"w": TensorInfo(tuple(held.shape), dtype)}, put, get, lambda: [held])


def test_what_is_derived_follows_a_write() -> None:
    held = torch.zeros(3)
    unit, derived = unit_of(held), torch.zeros(3)
    unit.followers.append(lambda: derived.copy_(1 + held))
    weight = NamedWeight("model.w", unit, "w")
    weight.write(torch.tensor([1.0, 2.0, 3.0]))
    assert derived.tolist() == [2.0, 3.0, 4.0]
    assert weight.read().dtype == torch.bfloat16 == weight.dtype
    assert weight.read().tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("tensor", "code"),
    [
        (torch.zeros(4), "wrong_shape"),
        (torch.zeros(3, 1), "wrong_shape"),
        (torch.zeros(3, dtype=torch.int32), "wrong_dtype"),
        (torch.zeros(3, dtype=torch.float8_e4m3fn), "wrong_dtype"),
    ],
)
def test_another_shape_or_kind_is_refused(tensor: torch.Tensor, code: str) -> None:
    held = torch.ones(3)
    with pytest.raises(WeightError, match="'w'") as error:
        unit_of(held).write({"w": tensor})
    assert error.value.code == code
    assert held.tolist() == [1.0, 1.0, 1.0]


def test_plain_types_are_given_for_one_another() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        held = torch.ones(3)
        unit_of(held).write({"w": torch.full((3,), 2.0, dtype=dtype)})
        assert held.tolist() == [2.0, 2.0, 2.0]


def test_fixed_tensors_are_only_written_as_they_are() -> None:
    unit = unit_of(torch.zeros(2), torch.float32)
    unit.fixed = {"w": torch.tensor([5.0, 6.0])}
    unit.write({"w": torch.tensor([5.0, 6.0])})
    with pytest.raises(WeightError, match="cannot change"):
        unit.write({"w": torch.tensor([5.0, 7.0])})


def test_portions_of_ranks_make_up_the_tensor() -> None:
    """Parts of different lengths, in any order, of which some are on two ranks."""
    whole = torch.arange(35.0).view(7, 5).to(torch.float8_e4m3fn)
    places = [torch.tensor([6, 0, 2]), torch.tensor([1, 3, 4, 5]), torch.tensor([5])]

    def work(exchange: RankExchange) -> torch.Tensor:
        own = places[exchange.rank]
        part = whole.view(torch.uint8)[own].view(whole.dtype)
        return Portion(part, (7, 5), (own,)).whole(exchange)

    for got in on_ranks(3, work):
        assert torch.equal(got.view(torch.uint8), whole.view(torch.uint8))


def test_rank_0_has_the_numbers_that_all_ranks_hold() -> None:
    def work(exchange: RankExchange) -> torch.Tensor:
        return Portion(torch.full((2,), float(exchange.rank)), (2,)).whole(exchange)

    for got in on_ranks(2, work):
        assert got.tolist() == [0.0, 0.0]
