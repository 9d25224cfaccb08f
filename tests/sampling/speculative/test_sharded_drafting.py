"""Drafts drawn by several ranks, each from its ids: those of one rank, with its part of q.

In plain torch; `test_sharded_drafting_kernels` does the same with kernels. Within a rank keys are
rounded from another highest logit than on one rank: a draft could differ with odds of 2**-44, and
the seeds are fixed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from sampling.device.ranks import LoneRank, RankExchange
from sampling.noise import TILE
from sampling.speculative.drafting import DraftMethod, draw_drafts, kept_shard
from tests.sampling.ranks import on_counting_ranks
from tests.sampling.speculative.test_drafting import PARAMS, N, make_logits, make_rows
from tests.sampling.test_vocab_shard import own, sharded

VOCAB = 5 * TILE + 304
DEPTH, NUM_DRAFTS = 1, 2
METHODS = ("greedy", "gumbel", "coupled")
KINDS = ("shard", "whole", "reduced")
"""Logits of a rank's ids, of all on every rank, and of a reduced vocabulary on every rank."""


class Drafted(NamedTuple):
    drafts: Tensor  # int32 [N]
    q: Tensor  # the rank's slots; 7 where nothing was kept


def columns_of(vocab_size: int) -> Tensor:
    """Every third id is drafted, in another order than the target's."""
    columns = torch.full((vocab_size,), -1, dtype=torch.int32)
    columns[::3] = torch.arange(len(columns[::3]), dtype=torch.int32).flip(0)
    return columns


def drafted(
    logits: Tensor,
    kind: str,
    method: DraftMethod,
    exchange: RankExchange,
    where: str = "cpu",
    wishes: list[dict[str, Any]] = PARAMS,
) -> Drafted:
    """What a rank drafts of logits [N, vocab_size]."""
    vocab_size = logits.shape[1]
    batch, rows = make_rows(vocab_size, where, wishes)
    rows.shard = shard = sharded(vocab_size, exchange)
    slots = torch.full((N + 1, NUM_DRAFTS, kept_shard(rows).width), 7.0, device=where)
    columns = None
    if kind == "shard":
        logits = own(logits, shard)
    elif kind == "reduced":
        columns = columns_of(vocab_size).to(where)
        logits = logits[:, : len(columns[::3])]
    drawn = draw_drafts(
        logits.to(where),
        batch,
        rows,
        DEPTH,
        method,
        draft_logits=slots if method == "gumbel" else None,
        columns=columns,
        shard=shard if kind == "shard" else None,
    )
    return Drafted(drawn.cpu(), slots.cpu())


def assert_alike(
    logits: Tensor,
    kind: str,
    method: DraftMethod,
    size: int,
    where: str = "cpu",
    wishes: list[dict[str, Any]] = PARAMS,
) -> list[int]:
    """Assert that all ranks draft as one does; returns the bytes of each message of a rank."""

    def work(exchange: RankExchange) -> Drafted:
        return drafted(logits, kind, method, exchange, where, wishes)

    alone, ranks = work(LoneRank()), on_counting_ranks(size, work)
    for rank, (found, _) in enumerate(ranks):
        assert torch.equal(found.drafts, alone.drafts), f"rank {rank} of {size}"
    together = torch.cat([found.q for found, _ in ranks], dim=2)
    assert torch.equal(together, alone.q)
    assert (alone.q[:N, DEPTH] != 7.0).all() == (method == "gumbel")
    assert len(set(map(tuple, (reported for _, reported in ranks)))) == 1
    return ranks[0][1]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_those_of_one_rank(kind: str, method: DraftMethod, size: int) -> None:
    logits = make_logits(VOCAB)
    logits[3] = logits[3].round()  # equal ones on several ranks: the lowest id is drafted
    logits[4, : 4 * TILE] = -torch.inf  # all that some ranks hold
    reported = assert_alike(logits, kind, method, size)
    if kind != "shard":
        assert reported == []
        return
    batch, rows = make_rows(VOCAB)
    random = int((rows.floats[batch.rows, 0] > 0).sum())
    of_greedy, of_random = [16 * N], [4 * random, 16 * random]
    assert reported == (of_greedy if method == "greedy" else of_greedy + of_random)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("method", METHODS)
def test_a_bad_row_drafts_the_same_on_every_rank(method: DraftMethod, bad: float) -> None:
    logits = make_logits(VOCAB)
    logits[2, 3 * TILE + 5], logits[5] = bad, bad
    alone = drafted(make_logits(VOCAB), "shard", method, LoneRank())
    ranks = on_counting_ranks(2, lambda exchange: drafted(logits, "shard", method, exchange))
    drafts = ranks[0][0].drafts
    assert torch.equal(ranks[1][0].drafts, drafts)
    assert ((drafts >= 0) & (drafts < VOCAB)).all()
    others = ~torch.isin(torch.arange(N), torch.tensor([2, 5]))
    assert torch.equal(drafts[others], alone.drafts[others])
