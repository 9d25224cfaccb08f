"""Sums in rank order, and gathers over gloo between threads of one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from engine.parallel.collectives import GlooExchange, rank_sum, summed
from sampling.device.ranks import LoneRank, RankExchange
from tests.sampling.ranks import on_ranks


def part(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(7, 33, generator=torch.Generator().manual_seed(rank)) * 10.0**rank
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 4])
def test_parts_are_added_in_float32_from_rank_0_on(size: int, dtype: torch.dtype) -> None:
    parts = [part(rank, dtype).float() for rank in range(size)]
    expected, other_order = parts[0], parts[-1]
    for a, b in zip(parts[1:], parts[-2::-1], strict=True):
        expected, other_order = expected + a, other_order + b
    if size > 2 and dtype == torch.float32:
        assert not torch.equal(expected, other_order), "the order tells"

    def work(exchange: RankExchange) -> torch.Tensor:
        return rank_sum(part(exchange.rank, dtype), exchange)

    for total in on_ranks(size, work):
        assert total.dtype == dtype
        assert torch.equal(total, expected.to(dtype))


def test_a_sum_of_few_rows_has_the_bits_of_many() -> None:
    def work(exchange: RankExchange) -> tuple[torch.Tensor, torch.Tensor]:
        x = part(exchange.rank)
        return rank_sum(x, exchange)[:2], rank_sum(x[:2], exchange)

    for many, few in on_ranks(4, work):
        assert torch.equal(many, few)


def test_a_product_on_one_rank_is_as_it_was() -> None:
    assert summed(torch.neg, LoneRank()) is torch.neg


@pytest.mark.parametrize("size", [2, 3])
def test_gloo_gathers_every_dtype_in_rank_order(tmp_path: Path, size: int) -> None:
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.bool)

    def work(rank: int) -> list[torch.Tensor]:
        exchange = GlooExchange(tmp_path / "meeting", rank, size)
        gathered = [exchange.all_gather(part(rank).to(dtype)) for dtype in dtypes]
        gathered.append(exchange.all_gather(torch.tensor(rank)))
        gathered.append(exchange.all_gather(part(rank)[:, ::2]))  # not contiguous
        assert exchange.num_begun == len(dtypes) + 2
        return gathered

    with ThreadPoolExecutor(size) as pool:
        everyone = list(pool.map(work, range(size)))
    parts = [part(rank) for rank in range(size)]
    for gathered in everyone:
        for dtype, found in zip(dtypes, gathered, strict=False):
            assert torch.equal(found, torch.stack([x.to(dtype) for x in parts]))
        assert gathered[-2].tolist() == list(range(size))
        assert torch.equal(gathered[-1], torch.stack([x[:, ::2] for x in parts]))
