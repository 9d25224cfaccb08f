"""Draws from a vocabulary in shards are, bit for bit, those of one rank, on every path.

Ranks are threads (`tests.sampling.ranks`). Logits are equal by construction, so nothing here is
random in outcome.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from sampling.batch import LogprobsOutput
from sampling.device.ranks import LoneRank, RankExchange
from sampling.filters import plain
from sampling.filters.histograms import order_keys, values_of
from sampling.noise import TILE
from sampling.params import LogprobsMode, SamplingParams
from sampling.paths import torch_path
from sampling.paths.listed_logprobs import listed_logprobs
from sampling.paths.logprobs import prompt_logprobs
from sampling.speculative.verification import Method, verify
from sampling.vocab_shard import ShardError, VocabShard
from tests.sampling.ranks import on_counting_ranks, on_ranks
from tests.sampling.sharded_cases import (
    FILTERS,
    REPORTS,
    VOCAB,
    WISHES,
    own,
    same,
    sharded,
)
from tests.sampling.speculative.speculated_steps import Step, random_step
from tests.sampling.steps import Host, Request, make_logits

SIZES = (2, 4)  # of six tiles: three each; one, two, one and two

Tensors = tuple[Tensor | None, ...]


def draw(
    wishes: Sequence[dict[str, Any]],
    logits: Tensor,
    exchange: RankExchange,
    allowed: Sequence[int] | None = None,
) -> tuple[Any, Tensor]:
    """What one rank draws for requests of these wishes, and the counts it keeps."""
    host = Host(len(wishes), VOCAB)
    host.rows.shard = sharded(VOCAB, exchange)
    for row, wish in enumerate(wishes):
        params = SamplingParams(**(wish | {"constrained": allowed is not None}))
        request = Request(params, seed=row * 77 - 5, choice=row % 2, allowed=allowed)
        request.tokens += [9, 4100, 9, 2, 3]  # an output, part of which penalties count
        host.admit(row, request)
    host.rows.flush()
    batch = host.batch(range(len(wishes)))
    drawn = torch_path.draw(own(logits, host.rows.shard), batch, host.rows)
    return drawn, host.rows.counts.words


def assert_alike(work: Callable[[RankExchange], Any]) -> Any:
    """Assert that all ranks of every number of them do as one alone does; returns what it does."""
    alone = work(LoneRank())
    for size in SIZES:
        for rank, result in enumerate(on_ranks(size, work)):
            assert same(result, alone), f"rank {rank} of {size}"
    return alone


@pytest.mark.parametrize("decimals", [None, 1], ids=["smooth", "ties"])
def test_draws_are_those_of_one_rank(decimals: int | None) -> None:
    logits = make_logits(len(WISHES), VOCAB, seed=3)
    if decimals is not None:
        logits = logits.round(decimals=decimals)
    drawn, _ = assert_alike(lambda exchange: draw(WISHES, logits, exchange))
    assert not drawn.bad.any()
    assert len(set((drawn.token_ids // TILE).tolist())) > 3, "tokens of several shards were drawn"


@pytest.mark.parametrize("report", REPORTS)
def test_logprobs_are_those_of_one_rank(report: dict[str, Any]) -> None:
    wishes = [wish | report for wish in WISHES]
    logits = make_logits(len(WISHES), VOCAB, seed=4).round(decimals=2)
    drawn, _ = assert_alike(lambda exchange: draw(wishes, logits, exchange))
    assert drawn.logprobs is not None
    assert drawn.logprobs.chosen.isfinite().all()


def test_sums_have_the_bits_of_one_rank() -> None:
    """The float64 offsets themselves, which a reported float32 would round to the same."""
    logits = make_logits(40, VOCAB, seed=12)

    def offsets(exchange: RankExchange) -> Tensor:
        host = Host(40, VOCAB)
        host.rows.shard = sharded(VOCAB, exchange)
        for row in range(40):
            mode: LogprobsMode = "processed_logprobs" if row % 2 else "raw_logprobs"
            params = SamplingParams(logprobs=0, logprobs_mode=mode, temperature=0.7)
            host.admit(row, Request(params))
        host.rows.flush()
        batch = host.batch(range(40))
        processed = torch_path.prepare(own(logits, host.rows.shard), batch, host.rows)
        return torch_path.reported_values(processed, batch, host.rows)[1]

    assert_alike(offsets)


def test_grammars_mask_each_shard_by_its_part() -> None:
    wishes, allowed = [{"temperature": 3.0}] * 40, (3, TILE + 33, 3 * TILE - 1, VOCAB - 2)
    logits = make_logits(40, VOCAB, seed=5)
    drawn, _ = assert_alike(lambda exchange: draw(wishes, logits, exchange, allowed))
    assert set(drawn.token_ids.tolist()) == set(allowed)


def test_a_bad_row_is_bad_on_every_rank() -> None:
    logits = make_logits(6, VOCAB, seed=6)
    logits[0, 5 * TILE] = torch.nan
    logits[1, 3] = torch.inf
    logits[2] = -torch.inf
    logits[3, : 4 * TILE] = -torch.inf  # all that some ranks hold
    wishes = [{"top_p": 0.9}] * 4 + [{"allowed_token_ids": (TILE,)}] * 2
    logits[5, TILE] = -torch.inf
    drawn, _ = assert_alike(lambda exchange: draw(wishes, logits, exchange))
    assert drawn.bad.tolist() == [1, 1, 1, 0, 0, 2]


@pytest.mark.parametrize("wish", FILTERS)
@pytest.mark.parametrize("scale", [0.0, 0.4, 3.0], ids=["flat", "wide", "peaked"])
def test_cuts_are_those_of_one_rank(wish: dict[str, Any], scale: float) -> None:
    params = SamplingParams(**wish)
    x = torch.cat([make_logits(3, VOCAB, seed=7, scale=scale)] * 2)
    x[3:] = x[3:].round()

    def kept(exchange: RankExchange) -> Tensor:
        shard = sharded(VOCAB, exchange)
        values = own(x, shard)
        cut = plain.cut(
            values,
            torch.full((6,), params.temperature, dtype=torch.float64),
            torch.full((6,), params.top_k),
            torch.full((6,), params.top_p, dtype=torch.float64),
            torch.full((6,), math.log(params.min_p or 5e-324) if params.min_p else -math.inf),
            shard,
        )
        ids = cut.keeps(values, shard.token_ids())
        padded = torch.zeros(6, VOCAB, dtype=torch.bool)
        padded[:, shard.first : shard.first + shard.width] = ids
        return exchange.all_gather(padded).any(0)

    alone = assert_alike(kept)
    assert alone.any(1).all()
    if params.top_k and scale:
        assert (alone.sum(1) <= params.top_k).all()


@pytest.mark.parametrize(
    ("method", "has_logits"),
    [
        ("standard", True),
        ("standard", False),
        ("coupled", False),
        ("synthetic", True),
        ("synthetic", False),
    ],
)
def test_verification_is_that_of_one_rank(method: Method, has_logits: bool) -> None:
    wishes: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"logprobs": 3},
        {"temperature": 0.6, "top_p": 0.9, "logprobs": 2},
        {"top_k": 30, "frequency_penalty": 0.5},
        {"min_p": 0.01, "kept_logprob": True},
    ]
    step = random_step(wishes, 10, 3, VOCAB, has_draft_logits=has_logits, likely=0.97)
    rates = torch.tensor([0.9, 0.5, 0.4], dtype=torch.float64) if method == "synthetic" else None

    def verified(exchange: RankExchange) -> Any:
        return _verify(step, exchange, method, rates)

    alone, _ = assert_alike(verified)
    assert 0 < int(alone.num_accepted.sum()) < 30, "drafts are accepted and refused"


def _verify(step: Step, exchange: RankExchange, method: Method, rates: Tensor | None) -> Any:
    batch, rows, drafts = step.make(torch.device("cpu"), sharded(VOCAB, exchange))
    outcome = verify(own(step.logits, rows.shard), batch, rows, drafts, method, rates)
    if outcome.logprobs is not None:  # undefined where no token is kept
        kept = torch.zeros(len(batch.rows_np), dtype=torch.bool)
        for start, count in zip(drafts.starts.tolist(), outcome.num_new.tolist(), strict=True):
            kept[start : start + count] = True
        outcome = outcome._replace(logprobs=outcome.logprobs.at(kept.nonzero().flatten()))
    return outcome, rows.counts.words


def test_a_residual_that_rounds_to_nothing_is_nothing_on_every_rank() -> None:
    """All of p in one token, which is refused: every rank then draws from p."""
    step = random_step([{}], 2, 1, VOCAB, has_draft_logits=False)
    step.logits[:, :] = -torch.inf
    step.logits[:, 4 * TILE + 1] = 1.0
    step.draft_ids[:] = 4 * TILE + 1
    rates = torch.zeros(1, dtype=torch.float64)
    alone, _ = assert_alike(lambda exchange: _verify(step, exchange, "synthetic", rates))
    assert int(alone.num_accepted.sum()) == 0
    assert (alone.token_ids[:, 0] == 4 * TILE + 1).all()


@pytest.mark.parametrize("normalized", [True, False])
def test_prompt_logprobs_are_those_of_one_rank(normalized: bool) -> None:
    x = make_logits(9, VOCAB, seed=8).round(decimals=2)
    targets = torch.arange(9) * 600

    def report(exchange: RankExchange) -> LogprobsOutput:
        shard = sharded(VOCAB, exchange)
        ids = torch.tensor([3, VOCAB - 1, VOCAB, -1])
        return prompt_logprobs(
            own(x, shard),
            targets,
            num_top=128,
            explicit_ids=ids,
            normalized=normalized,
            shard=shard,
        )

    alone = assert_alike(report)
    assert alone.explicit[:, 2:].eq(-torch.inf).all()


def test_listed_logprobs_are_those_of_one_rank() -> None:
    x = make_logits(4, VOCAB, seed=9, scale=9.0)
    x[3, 7] = torch.nan
    lists = torch.tensor([[0, VOCAB - 1, TILE], [4, -1, -1], [2 * TILE, 3, -1], [1, 2, 3]])

    def score(exchange: RankExchange) -> tuple[Tensor, ...]:
        shard = sharded(VOCAB, exchange)
        values, others, best_ids, best, _ = listed_logprobs(own(x, shard), lists, shard)
        return values.masked_fill(lists < 0, 0.0), others, best_ids[:3], best

    values, others, _, _ = assert_alike(score)
    listed = values[0].exp().sum() + others[0].exp()
    assert math.isclose(float(listed), 1.0, abs_tol=1e-6)
    assert values[3].isnan().all()


def test_no_logits_are_gathered() -> None:
    """What a rank sends, in bytes a row; its own logits are 2,560 x 4 and more of them."""

    def sent(wish: dict[str, Any], scale: float = 2.0) -> int:
        logits = make_logits(8, VOCAB, seed=10, scale=scale)
        results = on_counting_ranks(2, lambda exchange: draw([wish] * 8, logits, exchange))
        totals = {sum(bytes_sent) for _, bytes_sent in results}
        assert len(totals) == 1, "all ranks send as much"
        return totals.pop() // 8

    assert sent({"temperature": 0.0}) == sent({}) == 4 + 16
    assert sent({"top_k": 50}) == 4 + 16 + 4 + 4 * plain.FEW
    in_tile_order = 3 * 8  # maxima and masses of three tiles
    values = 8 * 5 + 4 * (1 + 5) + 4  # keys of the top list, values, and a count
    assert sent({"logprobs": 5}) == 4 + 16 + in_tile_order + values
    histograms = 4 * 256 * 8
    flat = sent({"top_p": 0.99}, scale=0.1)
    assert histograms < flat < histograms + 400
    twice = sent({"top_k": 900, "top_p": 0.9})
    assert 2 * histograms < twice < 2 * histograms + 400


def test_a_wrong_owner_and_a_wrong_order_are_found() -> None:
    """The properties above can fail: a shard that is off by a tile, and sums in another order."""
    logits = make_logits(len(WISHES), VOCAB, seed=3)

    def off_by_a_tile(exchange: RankExchange) -> Any:
        if exchange.size == 1:
            return draw(WISHES, logits, exchange)
        return draw(WISHES, logits.roll(TILE, 1), exchange)

    with pytest.raises(AssertionError, match="rank 0 of 2"):
        assert_alike(off_by_a_tile)


def test_shards_are_whole_tiles_in_order() -> None:
    class Rank(LoneRank):
        size = 4

    assert VocabShard.split(VOCAB, Rank()).starts == (0, TILE, 3 * TILE, 4 * TILE, VOCAB)
    with pytest.raises(ShardError, match=r"3000 ids has 3 tiles of 1024, fewer than the 4 ranks"):
        VocabShard.split(3000, Rank())


def test_order_keys_ascend_with_values() -> None:
    values = torch.tensor([-torch.inf, -3.0, -1e-40, 0.0, 1e-45, 2.0, 3e38, torch.inf])
    keys = order_keys(values)
    assert (keys.diff() > 0).all()
    assert torch.equal(values_of(keys), values)
    assert order_keys(torch.tensor([-0.0])) == order_keys(torch.tensor([0.0]))


@pytest.mark.parametrize("size", SIZES)
def test_rows_are_made_whole(size: int) -> None:
    logits = make_logits(3, VOCAB, seed=11)

    def gathered(exchange: RankExchange) -> Tensor:
        shard = sharded(VOCAB, exchange)
        return shard.whole_rows(own(logits, shard))

    for whole in on_ranks(size, gathered):
        assert torch.equal(whole, logits)
